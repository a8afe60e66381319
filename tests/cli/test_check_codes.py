"""milblob check --rule, --ignore and --sarif, and the same in Python."""

import json
import os
import pathlib
import shutil
from urllib.parse import unquote, urlsplit

import pytest

import milblob
from milblob.cli import main
from milblob.rules.catalog import RULES
from paths import DATA, DEMO
from sound_models import sound_model, write

# What the SARIF 2.1.0 schema requires of each object that milblob writes, and the values that it lists.
REQUIRED = {
    "log": {"version", "runs"},
    "run": {"tool"},
    "tool": {"driver"},
    "driver": {"name"},
    "rule": {"id"},
    "result": {"message"},
    "message": {"text"},
    "notification": {"message"},
    "invocation": {"executionSuccessful"},
}
LEVELS = {"none", "note", "warning", "error"}


@pytest.fixture
def broken(tmp_path):
    """A model that breaks MIL036 and MIL038, and has a weight file that ends early."""
    model = sound_model()
    model.mlProgram.version = 2
    model.mlProgram.functions["main"].block_specializations["CoreML6"].operations[0].attributes["name"].Clear()
    path = write(model, tmp_path)
    weights = tmp_path / "weights" / "weight.bin"
    weights.write_bytes(weights.read_bytes()[:-4])
    return path


def codes(findings):
    return {finding.code for finding in findings}


def test_rules_and_ignore(broken):
    everything = codes(milblob.check(broken))
    assert {"MIL036", "MIL013", "bounds"} <= everything
    assert codes(milblob.check(broken, rules="MIL036")) == {"MIL036"}
    assert codes(milblob.check(broken, rules=["MIL036", "bounds"])) == {"MIL036", "bounds"}
    assert codes(milblob.check(broken, rules="MIL*")) == {"MIL036", "MIL013"}
    assert codes(milblob.check(broken, ignore="MIL*")) == everything - {"MIL036", "MIL013"}
    assert codes(milblob.check(broken, rules="MIL*", ignore=["MIL036"])) == {"MIL013"}
    assert codes(milblob.check(broken, rules=lambda code: code == "MIL036")) == {"MIL036"}


@pytest.mark.parametrize("name", ["rules", "ignore"])
def test_codes_that_no_finding_has(broken, name, cli):
    for glob in ("MIL999", ["MIL036", "bonds"], "immediate"):
        with pytest.raises(ValueError, match=f"^{name}: expected a code of a finding"):
            milblob.check(broken, **{name: glob})
    with pytest.raises(TypeError, match=r"expected a glob"):
        milblob.check(broken, **{name: 5})
    option = {"rules": "--rule", "ignore": "--ignore"}[name]
    status, out, err = cli("check", broken, option, "MIL999")
    assert (status, out) == (2, "") and f"{name}: expected a code of a finding" in err and "'MIL999'" in err


def test_the_command_line_chooses(broken, cli):
    status, out, _ = cli("check", broken, "--rule", "MIL036", "--rule", "bounds", "--ignore", "bounds", "-q")
    assert status == 1 and out.splitlines()[0].startswith("error[MIL036] version of the Program")
    assert "bounds" not in out and "MIL013" not in out
    ignored = [word for code in {finding.code for finding in milblob.check(broken)} for word in ("--ignore", code)]
    status, out, _ = cli("check", broken, *ignored)
    assert (status, out) == (0, f"{broken}: good\n")


NOTHING = {
    "the same code": {"rules": "MIL036", "ignore": "MIL036"},
    "the same glob": {"rules": "MIL*", "ignore": "MIL*"},
    "all of several": {"rules": ["MIL036", "bounds"], "ignore": ["bounds", "MIL0*"]},
    "more than those": {"rules": ["MIL036"], "ignore": "*"},
    "all": {"ignore": "*"},
    "all by two globs": {"ignore": ["M*", "[!M]*"]},
    "a function": {"rules": lambda code: code == "bounds", "ignore": "bounds"},
    "two functions": {"rules": lambda code: code == "bounds", "ignore": lambda code: code == "bounds"},
    "a function that selects none": {"rules": lambda code: False},
}


@pytest.mark.parametrize("case", NOTHING)
def test_a_choice_that_leaves_nothing_to_report_is_refused(broken, tmp_path, case, cli):
    """It said of every model that it is good."""
    milblob.tvm.write_params({"a": [1.0]}, tmp_path / "w.params")
    for path in (broken, tmp_path / "w.params"):
        with pytest.raises(ValueError, match="^(rules: expected a function that|ignore: expected to leave)"):
            milblob.check(path, **NOTHING[case])
    if any(map(callable, NOTHING[case].values())):
        return
    words = []
    for name, option in (("rules", "--rule"), ("ignore", "--ignore")):
        given = NOTHING[case].get(name, [])
        words += [word for glob in ([given] if isinstance(given, str) else given) for word in (option, glob)]
    for command in (("check",), ("tvm", "check")):
        path = broken if command == ("check",) else tmp_path / "w.params"
        status, out, err = cli(*command, path, *words)
        assert (status, out) == (2, "") and "ignore: expected to leave the code of a finding" in err


def test_files_of_tvm_too(tmp_path, cli):
    path = tmp_path / "w.params"
    milblob.tvm.write_params({"a": [1.0]}, path)
    path.write_bytes(path.read_bytes() + b"\0")
    (finding,) = milblob.check(path)
    assert finding.code == "params-trailing"
    assert list(milblob.check(path, rules="MIL*")) == [] == list(milblob.check(path, ignore="params-*"))
    assert list(milblob.check(path, rules="params-*")) == [finding]
    status, out, _ = cli("tvm", "check", path, "--ignore", "params-trailing")
    assert (status, out) == (0, f"{path}: good\n")


def require(kind, found):
    assert REQUIRED[kind] <= set(found), (kind, found)
    return found


def sarif(out):
    """The results of a log, after a look at what the schema requires."""
    log = require("log", json.loads(out))
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    driver = require("driver", require("tool", require("run", run)["tool"])["driver"])
    assert driver["name"] == "milblob" and driver["version"] == milblob.__version__
    rules = [require("rule", rule)["id"] for rule in driver["rules"]]
    assert len(rules) == len(set(rules))
    for rule in driver["rules"]:
        if rule["id"] in RULES:
            assert rule["shortDescription"]["text"] == RULES[rule["id"]].demand
            assert rule["defaultConfiguration"]["level"] in LEVELS
    marks = [result["partialFingerprints"]["finding/v1"] for result in run["results"]]
    assert len(set(marks)) == len(marks)
    for result in run["results"]:
        require("message", require("result", result)["message"])
        assert result["level"] in LEVELS and rules[result["ruleIndex"]] == result["ruleId"]
        for location in result["locations"]:
            assert location["physicalLocation"]["artifactLocation"]["uri"]
            assert location["physicalLocation"].get("region", {"byteOffset": 0})["byteOffset"] >= 0
    (invocation,) = run["invocations"]
    for notification in require("invocation", invocation)["toolExecutionNotifications"]:
        require("message", require("notification", notification)["message"])
    return run


def test_sarif(broken, cli):
    status, out, _ = cli("check", broken, "--sarif")
    run = sarif(out)
    findings = milblob.check(broken)
    assert status == 1 and run["invocations"][0]["executionSuccessful"]
    assert len(run["results"]) == len(findings)
    for result, finding in zip(run["results"], findings, strict=True):
        (location,) = result["locations"]
        physical = location["physicalLocation"]
        assert (result["ruleId"], result["level"]) == (finding.code, finding.severity)
        assert result["message"]["text"] == finding.message
        assert pathlib.Path(unquote(urlsplit(physical["artifactLocation"]["uri"]).path)) == pathlib.Path(finding.file)
        assert physical.get("region", {}).get("byteOffset") == finding.offset
        assert location.get("logicalLocations", [{"fullyQualifiedName": ""}])[0]["fullyQualifiedName"] == finding.where


def test_sarif_of_relative_paths_of_any_name(broken, cli, monkeypatch):
    broken.parent.joinpath("a b#ü").mkdir()
    broken.rename(broken.parent / "a b#ü" / "m.mlmodel")
    monkeypatch.chdir(broken.parent)
    _, out, _ = cli("check", os.path.join("a b#ü", "m.mlmodel"), "--sarif", "--rule", "MIL036")
    (result,) = sarif(out)["results"]
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "a%20b%23%C3%BC/m.mlmodel"


def test_sarif_of_sound_models_and_of_none(cli, tmp_path):
    status, out, _ = cli("check", DATA / "pipeline" / "model.mlpackage", "--sarif")
    assert status == 0 and sarif(out)["results"] == []
    status, out, err = cli("check", tmp_path / "none.mlmodel", "--sarif")
    run = sarif(out)
    assert status == 2 and not run["invocations"][0]["executionSuccessful"] and run["results"] == []
    assert run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"] in err


def test_one_form_of_output(broken, cli):
    status, out, err = cli("check", broken, "--sarif", "--json")
    assert (status, out) == (2, "") and "expected --json or --sarif, got both" in err


def test_many_findings_alike(tmp_path, capsys):
    shutil.copytree(DEMO, tmp_path / "m.mlpackage")
    os.truncate(next(tmp_path.rglob("*.bin")), 1000)
    found = [finding for finding in milblob.check(tmp_path / "m.mlpackage") if finding.code == "reference"]
    assert main(["check", str(tmp_path / "m.mlpackage")]) == 1
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("error[reference]")]
    assert len(printed) == 21 and printed[20] == f"error[reference] {len(found) - 20} more (-v prints all)"
    assert main(["check", str(tmp_path / "m.mlpackage"), "-v"]) == 1
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("error[reference]")]
    assert len(printed) == len(found) > 60
