"""Modules that declare jobs are imported when the kinds are first needed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from leasemill import App, Invalid, Worker
from leasemill.cli import main
from leasemill.cli.app_loader import load_app

APP = """
from leasemill import App
app = App("memory:", include=["shop_x.jobs", "shop_x.more.mail"])
"""
JOBS = """
from shop_x.app import app

@app.job(queue="billing")
def charge(account: str) -> None: ...

KNOWN = sorted(app.jobs)

@app.cron("@daily", args={"account": "all"})
@app.job(name="charge_all")
def charge_all(account: str) -> None: ...
"""
MAIL = """
from shop_x.app import app

@app.job(queue="mail")
async def send(to: str) -> None: ...
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package whose modules declare the jobs of one app."""
    package = tmp_path / "shop_x"
    (package / "more").mkdir(parents=True)
    for name, text in {
        "__init__.py": "",
        "app.py": APP,
        "jobs.py": JOBS,
        "more/__init__.py": "",
        "more/mail.py": MAIL,
    }.items():
        (package / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop_x"]:
        del sys.modules[name]


def imported() -> list[str]:
    return sorted(name for name in sys.modules if name.startswith("shop_x."))


def test_nothing_is_imported_before_it_is_needed(shop: Path) -> None:
    app = load_module_app()
    assert imported() == ["shop_x.app"]
    assert repr(app) == "<App memory: with 0 kinds>"
    assert sorted(app.jobs) == ["charge", "charge_all", "send"]
    assert repr(app) == "<App memory: with 3 kinds>"
    assert list(app.schedules.declared) == ["charge_all"]
    assert sys.modules["shop_x.jobs"].KNOWN == ["charge"], "a module that asks meanwhile finds what there is"


def load_module_app() -> App:
    from shop_x.app import app  # type: ignore[import-not-found]  # noqa: PLC0415

    assert isinstance(app, App)
    return app


def test_schedules_of_included_modules_are_known_first(shop: Path) -> None:
    assert list(load_module_app().schedules.declared) == ["charge_all"]


def test_a_worker_serves_the_queues_of_included_modules(shop: Path) -> None:
    assert sorted(Worker(load_module_app()).queues) == ["billing", "default", "mail"]


def test_a_job_is_enqueued_by_name_from_an_included_module(shop: Path) -> None:
    app = load_module_app()
    assert app.enqueue("send", to="ann").record().spec.queue == "mail"


def test_the_command_line_imports_them(shop: Path) -> None:
    assert sorted(load_app("shop_x.app:app").jobs) == ["charge", "charge_all", "send"]


def test_threads_that_ask_at_once_find_everything(shop: Path) -> None:
    (shop / "jobs.py").write_text(f"import time\ntime.sleep(0.1)\n{JOBS}")
    app, found = load_module_app(), list[int]()
    threads = [threading.Thread(target=lambda: found.append(len(app.jobs))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == 5 * [3]


def test_a_module_that_fails_is_tried_again(shop: Path) -> None:
    (shop / "more/mail.py").write_text("raise KeyError('not today')")
    app = load_module_app()
    for _ in range(2):
        with pytest.raises(KeyError):
            _ = app.jobs


@pytest.mark.parametrize(
    ("include", "sentence"),
    [
        (["shop_x.jbos"], r"App\(include=\['shop_x.jbos'\]\): there is no module 'shop_x.jbos' here"),
        (["shpo.jobs"], "there is no module 'shpo' here"),
        ([""], "write the full name of a module, for example 'shop.jobs'"),
        ([".jobs"], "write the full name of a module"),
        ([sys], "write the full name of a module"),
    ],
)
def test_a_name_that_is_no_modules_is_refused(shop: Path, include: list[str], sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence):
        _ = App("memory:", include=include).jobs


def test_a_module_that_lacks_another_fails_as_itself(shop: Path) -> None:
    (shop / "jobs.py").write_text("import absent_xyz")
    with pytest.raises(ModuleNotFoundError, match="absent_xyz"):
        _ = load_module_app().jobs


def test_one_name_is_not_a_list_of_letters() -> None:
    with pytest.raises(Invalid, match=r"include is a string, 'shop.jobs'; write a list: \['shop.jobs'\]"):
        App(include="shop.jobs")


def test_a_worker_without_jobs_advises_to_include_modules(shop: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Invalid, match=r"the app declares no jobs; declare one .*App\(include=\['shop.jobs'\]\)"):
        Worker(App("memory:"))
    (shop / "empty.py").write_text("")
    with pytest.raises(Invalid, match=r"the app declares no jobs; its modules \(shop_x.empty\) declare none"):
        Worker(App("memory:", include=["shop_x.empty"]))
    Worker(App("memory:"), ["mail"], drain=True, handle_signals=False).run_sync()
    assert "the app declares no jobs; declare one with @app.job." in caplog.text


def test_a_module_that_fails_on_the_command_line_shows_its_own_traceback(shop: Path) -> None:
    (shop / "jobs.py").write_text("\n\n1 / 0")
    done = CliRunner().invoke(main, ["worker", "shop_x.app:app", "--drain"])
    assert done.exit_code != 0
    assert 'jobs.py", line 3' in done.output
    assert "shop_x.jobs cannot be imported: ZeroDivisionError" in done.output
    assert "app_loader.py" not in done.output
