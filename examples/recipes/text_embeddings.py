"""Text as embeddings: a head on the vectors of a frozen sentence encoder, which can be moved like any features.

`--encoder` is a folder with an encoder and its tokenizer as transformers saves them (all-MiniLM-L6-v2, say). Without it
a small encoder is made with random weights: enough to show the way, and what the tests run.

    pip install transformers
    python examples/recipes/text_embeddings.py --encoder FOLDER
"""

import argparse
import itertools
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, BertTokenizerFast

from bu_torch import BoundaryUncertaintyStopper

WHO = ["I", "We", "They", "She", "He", "Everyone", "Nobody", "Someone"]
VERBS = ["liked", "saw", "bought", "expected", "recommended", "returned", "mentioned", "finished"]
GOOD = ["excellent", "delightful", "brilliant", "charming", "superb", "lovely", "wonderful", "impressive"]
BAD = ["terrible", "boring", "awful", "clumsy", "poor", "dreadful", "disappointing", "broken"]
WHAT = ["film", "book", "meal", "phone", "concert", "hotel", "game", "lecture"]


def reviews() -> tuple[list[str], Tensor]:
    """512 sentences that praise or blame, every tenth with the wrong label."""
    texts, labels = [], []
    for place, (who, verb, what) in enumerate(itertools.product(WHO, VERBS, WHAT)):
        label = place % 2
        word = (BAD, GOOD)[label][(place // 2) % 8]
        texts.append(f"{who} {verb} the {word} {what}.")
        labels.append(1 - label if place % 10 == 7 else label)
    return texts, torch.tensor(labels)


def embed(texts: list[str], tokenizer: Any, encoder: nn.Module) -> Tensor:
    """Mean over the tokens of a sentence, of length 1, as sentence-transformers does for such encoders."""
    vectors = []
    for start in range(0, len(texts), 64):
        tokens = tokenizer(texts[start : start + 64], padding=True, return_tensors="pt")
        with torch.no_grad():
            hidden = encoder(**tokens).last_hidden_state
        mask = tokens["attention_mask"].unsqueeze(2)
        vectors.append(nn.functional.normalize((hidden * mask).sum(dim=1) / mask.sum(dim=1), dim=1))
    return torch.cat(vectors)


def random_encoder(texts: list[str]) -> tuple[Any, nn.Module]:
    words = sorted({word for text in texts for word in text.lower().replace(".", " .").split()})
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Path(folder, "vocab.txt")
        vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
        tokenizer = BertTokenizerFast(str(vocabulary))
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    return tokenizer, BertModel(BertConfig(vocab_size=len(words) + 5, **shape)).eval()


def main(encoder_folder: str | None = None, epochs: int = 100) -> tuple[dict[str, float], BoundaryUncertaintyStopper]:
    texts, labels = reviews()
    if encoder_folder is None:
        tokenizer, encoder = random_encoder(texts)
    else:
        tokenizer = AutoTokenizer.from_pretrained(encoder_folder, local_files_only=True)
        encoder = AutoModel.from_pretrained(encoder_folder, local_files_only=True).eval()
    vectors = embed(texts, tokenizer, encoder)
    truth = torch.tensor([any(word in text for word in GOOD) for text in texts]).long()
    is_new = torch.rand(len(texts), generator=torch.Generator().manual_seed(0)) < 0.5
    training, targets = vectors[~is_new], labels[~is_new]

    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(vectors.shape[1], 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(head.parameters(), lr=0.003)
    stopper = BoundaryUncertaintyStopper(training, targets)
    for _ in range(epochs):
        for rows in torch.randperm(len(training)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(training[rows]), targets[rows]).backward()
            optimizer.step()
        if stopper.check(head):
            break
    errors = {}
    for name in ("last", "kept"):
        with torch.no_grad():
            errors[name] = (head(vectors[is_new]).argmax(dim=1) != truth[is_new]).float().mean().item()
        stopper.restore(head)
    print(f"{len(training)} sentences, {vectors.shape[1]} features")
    print(f"error on new sentences: last epoch {errors['last']:.3f}, kept epoch {errors['kept']:.3f}")
    print(stopper.stopping_reason or f"All {epochs} epochs ran; epoch {stopper.best_epoch} was kept.")
    return errors, stopper


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", metavar="FOLDER")
    main(parser.parse_args().encoder)
