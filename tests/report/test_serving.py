"""The page of a run that goes on: for this machine alone, one page, new where the record is."""

import http.client
import json
import signal
import subprocess
import sys
import threading
import urllib.request

import pytest
import records

from bu_torch.report import serving
from bu_torch.report.serving import PageServer, watch


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "_PATIENCE", 0)
    with PageServer(tmp_path) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(server, path="/", method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


def test_it_listens_to_this_machine_alone(server):
    assert server.socket.getsockname()[0] == "127.0.0.1"
    assert server.address == f"http://127.0.0.1:{server.server_port}/"


def test_the_page_comes_with_headers_that_shut_others_out(server, tmp_path):
    records.write_run(tmp_path, n_checks=2, n_classes=2)
    answer, text = ask(server)
    assert answer.status == 200
    assert text.startswith("<!doctype html>")
    assert 'data-refresh="2"' in text
    assert "connect-src 'self'" in text
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    assert answer.getheader("X-Frame-Options") == "DENY"
    assert answer.getheader("Cross-Origin-Resource-Policy") == "same-origin"
    assert answer.getheader("Access-Control-Allow-Origin") is None
    assert "Python" not in answer.getheader("Server")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", ""])
def test_another_host_name_is_refused(server, host):
    answer, text = ask(server, Host=host.format(port=server.server_port))
    assert answer.status == 403
    assert "<" not in text


def test_this_host_by_name(server):
    assert ask(server, Host=f"localhost:{server.server_port}")[0].status == 200


@pytest.mark.parametrize("path", ["/boundary_uncertainty.csv", "/../../etc/passwd", "/favicon.ico", "/x?/", "/%2e%2e/"])
def test_there_is_one_page(server, tmp_path, path):
    records.write_run(tmp_path, n_checks=2, n_classes=2)
    answer, text = ask(server, path)
    assert answer.status == 404
    assert "root:" not in text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_written(server, method):
    assert ask(server, method=method)[0].status == 501


def test_the_header_alone(server):
    answer, text = ask(server, method="HEAD")
    assert answer.status == 200
    assert text == ""


def test_what_is_new_comes_once(server, tmp_path):
    accept = {"Accept": "application/json"}
    answer, text = ask(server, **accept)
    assert "No record yet" in json.loads(text)["main"]
    tag = answer.getheader("ETag")
    assert ask(server, **accept, If_None_Match=tag)[0].status == 304
    records.write_run(tmp_path / "run", n_checks=2, n_classes=2, ended=False)
    answer, text = ask(server, **accept, If_None_Match=tag)
    assert answer.status == 200
    shown = json.loads(text)
    assert "is kept so far" in shown["main"]
    assert not shown["hasEnded"]
    assert len(shown["drawings"]) == 7
    records.write_run(tmp_path / "run", n_checks=3, n_classes=2)
    shown = json.loads(ask(server, **accept, If_None_Match=answer.getheader("ETag"))[1])
    assert "was kept" in shown["main"]
    assert shown["hasEnded"]


def test_a_record_that_cannot_be_read_is_said_and_seen_again_once_it_can(server, tmp_path):
    (tmp_path / "boundary_uncertainty.csv").write_text("<script>,b\n1,2\n")
    answer, text = ask(server)
    assert answer.status == 200
    assert "The record cannot be read" in text
    records.write_run(tmp_path, n_checks=2, n_classes=2)
    assert "was kept" in ask(server)[1]


def test_a_record_that_takes_long_to_read_is_left_alone_for_longer(server, tmp_path, monkeypatch):
    records.write_run(tmp_path, n_checks=2, n_classes=2, ended=False)
    monkeypatch.setattr(serving, "_PATIENCE", 10_000)
    first = server.shown()
    records.write_run(tmp_path, n_checks=9, n_classes=2)
    assert server.shown() is first
    server._next_look = 0.0
    assert server.shown().has_ended


def test_the_command_serves_until_it_is_interrupted(tmp_path):
    records.write_run(tmp_path, n_checks=2, n_classes=2)
    process = subprocess.Popen(
        [sys.executable, "-m", "bu_torch", "watch", tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What runs in the background of a shell is not interrupted, and what it starts inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        address = process.stdout.readline().split()[0]
        with urllib.request.urlopen(address, timeout=60) as answer:  # noqa: S310
            assert b"was kept" in answer.read()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0
        assert said == ""
    finally:
        process.kill()
        process.communicate()


def test_a_folder_there_must_be(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no folder"):
        watch(tmp_path / "gone")


@pytest.mark.parametrize("port", [-1, 70000])
def test_a_port_there_must_be(tmp_path, port):
    with pytest.raises(ValueError, match="`port` must be an integer from 0 to 65535"):
        watch(tmp_path, port=port)
