"""The page of a run that goes on: for this machine alone, one page, new where the record is."""

import contextlib
import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import urllib.parse
import urllib.request

import pytest
import records

from bu_torch.report import serving
from bu_torch.report.serving import PageServer, watch


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "_PATIENCE", 0)
    with PageServer(tmp_path) as made, running(made):
        yield made


@contextlib.contextmanager
def running(server):
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


def ask(server, path=None, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    path = urllib.parse.urlsplit(server.address).path if path is None else path
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


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


ATTACKERS = [
    "attacker.com",
    "attacker.com:{port}",
    "localhost.attacker.com:{port}",
    "127.0.0.1.attacker.com:{port}",
    "attacker.com:{port}@127.0.0.1",
    "127.0.0.2:{port}",
    "10.0.0.7:{port}",
    "[::2]:{port}",
    "localhost:{port}/",
    "localhost:{port} attacker.com",
    "localhost:port",
    "localhost:",
    "<b>",
    "",
]


@pytest.mark.parametrize("host", ATTACKERS)
def test_a_name_that_a_site_has_made_to_lead_here_is_refused(server, tmp_path, host):
    records.write_run(tmp_path, n_checks=2, n_classes=2)
    answer, text = ask(server, Host=host.format(port=server.server_port))
    assert answer.status == 403
    assert "--allow-host" in text
    assert "<" not in text
    assert "attacker" not in text


NAMES = ["127.0.0.1:{port}", "localhost:{port}", "LocalHost:{port}"]
TUNNELS = ["localhost:9000", "127.0.0.1:9000", "[::1]:9000", "localhost"]


@pytest.mark.parametrize("host", [*NAMES, *TUNNELS])
def test_this_machine_by_name_also_at_the_other_end_of_a_tunnel(server, host):
    assert ask(server, Host=host.format(port=server.server_port))[0].status == 200


@pytest.mark.parametrize("hosts", [[], ["localhost", "attacker.com"], ["attacker.com", "localhost"]])
def test_a_request_must_name_one_host(server, hosts):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.putrequest("GET", urllib.parse.urlsplit(server.address).path, skip_host=True)
    for host in hosts:
        connection.putheader("Host", host)
    connection.endheaders()
    assert connection.getresponse().status == 403
    connection.close()


@pytest.mark.parametrize(
    ("allowed", "host", "status"),
    [
        ("gpu.example.org", "gpu.example.org", 200),
        ("gpu.example.org", "gpu.example.org:8080", 200),
        ("gpu.example.org", "GPU.Example.org:8080", 200),
        ("GPU.example.org:8080", "gpu.example.ORG:8080", 200),
        ("gpu.example.org:8080", "gpu.example.org:8081", 403),
        ("gpu.example.org:8080", "gpu.example.org", 403),
        ("gpu.example.org", "agpu.example.org", 403),
        ("gpu.example.org", "gpuxexample.org", 403),
        ("[fe80::1]", "[fe80::1]:80", 200),
        ("gpu_1", "gpu_1:80", 200),
        ("gpu_1", "localhost:80", 200),
    ],
)
def test_hosts_that_are_allowed_besides(tmp_path, allowed, host, status):
    with PageServer(tmp_path, allowed_hosts=["other.example.org", allowed]) as server, running(server):
        assert ask(server, Host=host)[0].status == status
        assert ask(server, Host=f"attacker.com:{server.server_port}")[0].status == 403


BAD_HOSTS = ["", " ", "a b", "http://a", "a/b", "a:", "a:0", "a:65536", "a:b", "*", "*.a", "::1", "[x]", "[1:2]", "[]"]
BAD_HOSTS += ["a\n", "ä.de"]


@pytest.mark.parametrize("host", BAD_HOSTS)
def test_hosts_that_are_none(tmp_path, host):
    with pytest.raises(ValueError, match=r"`allowed_hosts` \(`--allow-host`\) must hold names such as") as found:
        PageServer(tmp_path, allowed_hosts=["example.org", host])
    assert repr(host) in str(found.value)


OTHER_PATHS = [
    "/",
    "/boundary_uncertainty.csv",
    "/../../etc/passwd",
    "/favicon.ico",
    "/x?/",
    "/%2e%2e/",
    "/?token=",
    "/%C3%A4",
]


@pytest.mark.parametrize("path", [*OTHER_PATHS, "{token}x", "{token}/", "/x{token}", "{token}boundary_uncertainty.csv"])
@pytest.mark.parametrize("accept", ["text/html", "application/json"])
def test_there_is_one_page_and_none_without_the_token(server, tmp_path, path, accept):
    records.write_run(tmp_path, n_checks=2, n_classes=2)
    path = path.format(token=server.path)
    answer, text = ask(server, path, Accept=accept)
    assert answer.status == 403
    assert "`bu-torch watch` prints" in text
    assert "was kept" not in text
    assert "root:" not in text
    assert server.path.strip("/") not in text
    assert ask(server, f"{server.path}?any")[0].status == 200


def test_the_token_is_long_and_another_one_each_time(tmp_path):
    paths = []
    for _ in range(3):
        with PageServer(tmp_path) as server:
            paths.append(urllib.parse.urlsplit(server.address).path)
    assert len(set(paths)) == 3
    assert all(re.fullmatch(r"/[A-Za-z0-9_-]{43}/", path) for path in paths)


def test_it_listens_to_this_machine_alone_and_nothing_can_be_written(server):
    assert server.socket.getsockname()[0] == "127.0.0.1"
    assert server.address.startswith(f"http://127.0.0.1:{server.server_port}/")
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(server, method=method)[0].status == 501
    answer, text = ask(server, method="HEAD")
    assert (answer.status, text) == (200, "")


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
    assert len(shown["drawings"]) == 9
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


@pytest.mark.parametrize("is_readable", [True, False])
def test_a_record_that_takes_long_to_read_is_left_alone_for_longer(server, tmp_path, monkeypatch, is_readable):
    monkeypatch.setattr(serving, "_PATIENCE", 10_000)
    path = records.write_run(tmp_path, n_checks=2, n_classes=2, ended=False)
    if not is_readable:
        path.write_text("a,b\n1,2\n")
    first = server.shown()
    assert ("The record cannot be read" in first.main) != is_readable
    records.write_run(tmp_path, n_checks=9, n_classes=2)
    assert server.shown() is first
    server._next_look = 0.0
    assert server.shown().has_ended


def test_the_command_serves_until_it_is_interrupted(tmp_path):
    records.write_run(tmp_path, n_checks=2, n_classes=2)
    process = subprocess.Popen(
        [sys.executable, "-m", "bu_torch", "watch", tmp_path, "--allow-host", "a.org:80", "--allow-host", "b.org"],
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
        for host in ("a.org:80", "b.org:1234"):
            request = urllib.request.Request(address, headers={"Host": host})  # noqa: S310
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                assert b"was kept" in answer.read()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0
        assert said == ""
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("error", "said", "arguments"),
    [
        (ValueError, "`port` must be an integer from 0 to 65535", {"port": -1}),
        (ValueError, "`port` must be an integer from 0 to 65535", {"port": 70000}),
        *((TypeError, "`allowed_hosts` must be a sequence", {"allowed_hosts": one}) for one in ("a.org", None, 3, [3])),
    ],
)
def test_arguments_of_another_kind(tmp_path, error, said, arguments):
    with pytest.raises(error, match=said):
        watch(tmp_path, **arguments)
    with pytest.raises(FileNotFoundError, match="There is no folder"):
        watch(tmp_path / "gone")
