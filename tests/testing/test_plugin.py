"""The pytest plugin as a project that installed the framework has it: a folder of its own, a fresh pytest, nothing of ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
TESTING = (ROOT / "docs" / "testing.md").read_text()


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.delenv("BROKER_URL", raising=False)
    return Project(pytester)


class Project:
    """A folder with files, and pytest run there in a process of its own."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self._pytester = pytester

    def write(self, path: str, code: str) -> None:
        file = self._pytester.path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code)

    def pytest(self, *arguments: str) -> pytest.RunResult:
        """Without Hypothesis' plugin, whose import costs more than all that is tried here."""
        return self._pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest", *arguments, timeout=60)


def test_who_does_not_use_it_gets_nothing_imported_and_nothing_patched(project):
    project.write(
        "test_plain.py",
        "import sys, socket, time\n"
        "def test_nothing_of_it_is_here(pytestconfig):\n"
        "    assert pytestconfig.pluginmanager.has_plugin('workers')\n"
        "    loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "    assert not loaded & {'framework', 'gevent', 'greenlet', 'msgspec', 'yaml', 'click'}\n"
        "    assert socket.socket.__module__ == 'socket'\n"
        "    assert time.sleep.__module__ == 'time'\n",
    )
    project.pytest().assert_outcomes(passed=1)


def test_who_uses_it_gets_nothing_patched_either(project):
    project.write(
        "test_used.py",
        "import socket, threading\n"
        "def test_it(worker, broker):\n"
        "    from gevent import monkey\n"
        "    assert not any(map(monkey.is_module_patched, ('socket', 'threading', 'time', 'select', 'os')))\n",
    )
    project.pytest().assert_outcomes(passed=1)


def test_a_project_names_its_broker_once_for_all_its_tests(project):
    project.write("pytest.ini", "[pytest]\nbroker_like = nsq\n")
    project.write(
        "test_long.py",
        "import pytest\n"
        "from framework import WrongUse, publish\n"
        "def test_it(broker):\n"
        "    with pytest.raises(WrongUse, match='0 to 3600 seconds'):\n"
        "        publish('reminders', 'x', delay=259200)\n",
    )
    project.pytest().assert_outcomes(passed=1)


def test_pytest_lists_its_fixtures_with_what_they_are(project):
    listed = project.pytest("--fixtures").stdout.str()
    for name, words in {
        "broker": "An empty broker in memory",
        "nsqd": "The embedded nsqd, a process of its own",
        "worker": "Runs handlers until they have nothing left to do",
    }.items():
        assert re.search(rf"^{name} -- .*\n    {words}", listed, re.M), listed


def test_the_page_about_testing_shows_files_that_pass_as_they_stand(project):
    files = re.findall(r"```python\n# (\S+\.py)\n(.*?)```", TESTING, re.S)
    assert {path for path, _ in files} == {"shop.py", "test_shop.py", "test_faults.py", "test_delays.py", "test_nsqd.py"}
    for path, code in files:
        project.write(path, code)
    project.pytest().assert_outcomes(passed=sum(code.count("\ndef test_") for _, code in files))


def test_an_error_in_a_handler_is_reported_at_its_own_line_without_the_engine_around_it(project):
    project.write(
        "test_shop.py",
        "from framework import handler, publish\n"
        "@handler('orders', 'billing')\n"
        "def bill(order: dict) -> None:\n"
        "    total = order['price'] / order['items']\n"
        "def test_billing(broker, worker):\n"
        "    publish('orders', {'price': 5, 'items': 0})\n"
        "    worker.run(bill)\n",
    )
    done = project.pytest("--show-capture=no")
    done.stdout.fnmatch_lines([">*worker.run(bill)", ">*total = order*", "E*ZeroDivisionError: division by zero"])
    done.stdout.no_fnmatch_line("*middleware*")
    done.stdout.no_fnmatch_line("*runner.py*")


def test_tests_do_not_see_each_others_messages_or_handlers(project):
    test = (
        "def test_{n}(broker, worker):\n"
        "    @handler('orders', 'billing')\n"
        "    def bill(order: dict) -> None: ...\n"
        "    publish('orders', {{'n': {n}}})\n"
        "    assert worker.run(bill).received == 1\n"
    )
    project.write("test_shop.py", "from framework import handler, publish\n" + "".join(test.format(n=n) for n in range(3)))
    project.pytest().assert_outcomes(passed=3)


def test_a_project_may_have_fixtures_of_these_names_of_its_own(project):
    project.write("conftest.py", "import pytest\n@pytest.fixture\ndef broker():\n    return 'mine'\n")
    project.write("test_own.py", "def test_it(broker):\n    assert broker == 'mine'\n")
    project.pytest().assert_outcomes(passed=1)


def test_the_tests_of_the_examples_pass_where_a_user_would_put_them(project):
    for file in [*(ROOT / "examples").glob("*.py"), *(ROOT / "examples" / "tests").glob("*.py")]:
        project.write(str(file.relative_to(ROOT)), file.read_text())
    project.pytest("examples/tests").assert_outcomes(passed=5)
