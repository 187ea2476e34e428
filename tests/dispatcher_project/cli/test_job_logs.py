"""`job logs ID` prints the log lines of a job."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import CommandError, call_command

from jobs.models import Job
from tests.support.announced_jobs import end_job, new_job, write_lines
from tests.support.api_harness import Account, account

pytestmark = pytest.mark.django_db


def job_command(*arguments: str) -> list[str]:
    out = io.StringIO()
    call_command("job", *arguments, stdout=out)
    return out.getvalue().splitlines()


@pytest.fixture
def job() -> Job:
    reader: Account = account("acme")
    found = new_job(reader.tenant)
    write_lines(found, "one", "    indented \x1b[2J")
    write_lines(found, "boo", stream="stderr", level="error")
    return found


def test_the_lines_are_printed_without_commands_for_the_terminal(job: Job) -> None:
    assert job_command("logs", job.id) == [
        "12:01:00.000 #1 log    one",
        "12:01:01.000 #1 log        indented ·[2J",
        "12:01:00.000 #1 stderr/error boo",
    ]
    assert job_command("logs", job.id.lower(), "--tail", "1") == ["12:01:00.000 #1 stderr/error boo"]


def test_json_lines_are_those_of_the_api_and_following_ends_with_the_job(job: Job) -> None:
    end_job(job.id, announce=False)
    lines = [json.loads(line) for line in job_command("logs", job.id, "--json", "--follow")]
    assert [line["id"] for line in lines] == ["2.1", "2.2", "3.1"]


def test_the_job_itself_is_shown_without_its_lines(job: Job) -> None:
    shown = "\n".join(job_command(job.id))
    assert job.id in shown
    assert "boo" not in shown


def test_an_empty_log_says_where_lines_come_from(job: Job) -> None:
    empty = new_job(job.tenant)
    for options, hints in (((), True), (("--json",), False)):
        out, err = io.StringIO(), io.StringIO()
        call_command("job", "logs", empty.id, *options, stdout=out, stderr=err)
        assert (out.getvalue(), "sends `logs` in its answers" in err.getvalue()) == ("", hints)
    err = io.StringIO()
    call_command("job", "logs", job.id, stdout=io.StringIO(), stderr=err)
    assert err.getvalue() == ""


@pytest.mark.parametrize("arguments", [("logs",), ("a", "b"), ("logs", "a", "b"), ("x", "--tail", "3")])
def test_wrong_words_are_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(CommandError):
        job_command(*arguments)
