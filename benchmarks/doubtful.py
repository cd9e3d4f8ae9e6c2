"""Which labels are wrong? The ranking of `doubtful_labels`, beside that of a classifier's out-of-fold probabilities.

    python benchmarks/doubtful.py

Half of each shipped table, at most 1500 samples, has 20 % of its labels drawn anew. A ranking is judged by the area
under the ROC curve with which it finds the labels that have changed. *Self-confidence* is what cleanlab sorts by
(Northcutt, Jiang and Chuang 2021): the probability of the label by a classifier that five-fold cross-validation fits to
other samples, here scikit-learn's gradient boosting and logistic regression. *Trust* is the trust score of the label.
"""

import numpy as np
import pandas as pd
import tables
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict

from bu_torch import TrustScore, doubtful_labels

CLASSIFIERS = {
    "boosting": HistGradientBoostingClassifier(random_state=0),
    "logistic": LogisticRegression(max_iter=1000),
}


def areas(table: str) -> dict[str, float]:
    (inputs, clean), _, n_classes = tables.load(table, 0, most_samples=1500)
    labels = tables.redraw(clean, n_classes, 0.2, torch.Generator().manual_seed(0))
    found = doubtful_labels(inputs, labels)
    rows = np.arange(len(labels))
    scores = {"doubtful_labels": found.probability[found.rows.argsort()].numpy()}
    for name, model in CLASSIFIERS.items():
        predicted = cross_val_predict(model, inputs.numpy(), labels.numpy(), cv=5, method="predict_proba")
        scores[f"self-confidence, {name}"] = predicted[rows, labels]
    trust = TrustScore().fit(inputs, labels)
    others = trust.class_distances(inputs, torch.arange(len(labels)))
    scores["trust"] = (others.scatter(1, labels.unsqueeze(1), torch.inf).amin(1) / others[rows, labels]).numpy()
    return {name: roc_auc_score(clean != labels, -np.nan_to_num(score, posinf=1e9)) for name, score in scores.items()}


def main() -> pd.DataFrame:
    frame = pd.DataFrame({table: areas(table) for table in tables.TABLES if table != "letter"}).T
    print(frame.round(3).to_string())
    print(frame.mean().round(3).to_string())
    return frame


if __name__ == "__main__":
    main()
