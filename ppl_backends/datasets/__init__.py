"""Small real data sets for examples, tests and benchmarks, and reference evidences of posteriors.

``README.md`` in this folder lists the sources of the data.

>>> from ppl_backends.datasets import load_binary_regression
>>> X, y, names, description = load_binary_regression("pima")
>>> X.shape, int(y.sum()), names[:3]
((532, 8), 177, ('intercept', 'npreg', 'glu'))
"""

from ppl_backends.datasets.evidence import (
    EvidenceEstimate,
    ReferenceEvidence,
    data_digest,
    evidence_failures,
    program_digest,
    reference_evidence,
    reference_evidence_names,
    validate_reference_evidences,
)
from ppl_backends.datasets.load import (
    BINARY_REGRESSIONS,
    BinaryRegression,
    load_binary_regression,
    load_finpines,
    load_florentine,
    load_tuberculosis,
)

__all__ = [
    "BINARY_REGRESSIONS",
    "BinaryRegression",
    "EvidenceEstimate",
    "ReferenceEvidence",
    "data_digest",
    "evidence_failures",
    "load_binary_regression",
    "load_finpines",
    "load_florentine",
    "load_tuberculosis",
    "program_digest",
    "reference_evidence",
    "reference_evidence_names",
    "validate_reference_evidences",
]
