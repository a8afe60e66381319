"""Findings as a SARIF 2.1.0 log, which code-scanning services read."""

import hashlib
import os
import pathlib
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from ...analysis.check_report import CheckReport, Finding
from ...rules.catalog import RULES
from ...version import VERSION

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def log(models: Iterable[tuple[str, CheckReport]], failures: Iterable[str]) -> dict[str, Any]:
    """Return one run over several models as a SARIF log.

    `models`: path of each, with its findings. `failures`: a line for each path that could not be opened.
    """
    models, failures = list(models), list(failures)
    codes = list(dict.fromkeys(finding.code for _, findings in models for finding in findings))
    run = {
        "tool": {"driver": {"name": "milblob", "version": VERSION, "rules": [_rule(code) for code in codes]}},
        "invocations": [
            {
                "executionSuccessful": not failures,
                "toolExecutionNotifications": [{"level": "error", "message": {"text": text}} for text in failures],
            }
        ],
        "results": [_result(path, finding, codes.index(finding.code)) for path, found in models for finding in found],
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(code: str) -> dict[str, Any]:
    rule = RULES.get(code)
    if rule is None:
        return {"id": code}
    return {
        "id": code,
        "shortDescription": {"text": rule.demand},
        "help": {"text": rule.remedy},
        "defaultConfiguration": {"level": rule.severity},
    }


def _result(path: str, finding: Finding, index: int) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(finding.file or path)}}
    if finding.offset is not None:
        physical["region"] = {"byteOffset": finding.offset}
    location: dict[str, Any] = {"physicalLocation": physical}
    if finding.where:
        location["logicalLocations"] = [{"fullyQualifiedName": finding.where}]
    words = "\0".join((finding.code, finding.where, finding.message)).encode("utf-8", "surrogatepass")
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": finding.severity,
        "message": {"text": finding.message},
        "locations": [location],
        # A service recognizes a finding by this; offsets change when a file changes.
        "partialFingerprints": {"finding/v1": hashlib.sha256(words).hexdigest()[:32]},
    }


def _uri(path: str) -> str:
    """A path as a URI reference: relative to where the command runs, as code-scanning services want it."""
    if os.path.isabs(path):
        return pathlib.Path(path).as_uri()
    return quote(os.fsencode(path.replace(os.sep, "/")))
