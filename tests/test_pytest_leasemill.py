"""The plugin as a user's pytest sees it: installed, blocked, with xdist and pytest-asyncio, and idle when unused."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from textwrap import dedent

import pytest

pytest_plugins = ["pytester"]

OPTIONS = ("-q", "-p", "no:cacheprovider", "-o", "asyncio_default_fixture_loop_scope=function")
SHOP = """
    from leasemill import App, Context

    app = App()
    sent = []

    @app.job
    def mail(ctx: Context, to: str) -> None:
        with ctx.commit() as tx:
            tx.enqueue(note, to)

    @app.job
    def note(to: str) -> None:
        sent.append(to)
"""
USES = """
    import shop

    def test_mail(leasemill):
        with leasemill(shop.app) as jobs:
            shop.mail.enqueue("ann")
            assert jobs.enqueued(shop.mail) == [{"to": "ann"}]
            jobs.drain()
        assert shop.sent == ["ann"]
"""


@pytest.fixture(autouse=True)
def _shop(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test imports its own."""
    monkeypatch.setenv("LEASEMILL_URL", "postgresql://nobody@nowhere.invalid/production")
    pytester.makepyfile(shop=dedent(SHOP))
    pytester.makeini("[pytest]\naddopts = --strict-markers --strict-config\nasyncio_mode = strict\n")


def run(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    """In a process of its own: pytester would forget modules of Leasemill that were imported first in a run of its."""
    return pytester.runpytest_subprocess(*OPTIONS, *args)


def test_the_fixture_is_there_without_an_import(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_shop=dedent(USES))
    run(pytester).assert_outcomes(passed=1)
    assert not (pytester.path / ".leasemill").exists()


def test_a_call_without_with_fails_the_test_instead_of_binding_nothing(pytester: pytest.Pytester) -> None:
    forgets = """
        import shop

        def test_mail(leasemill):
            leasemill(shop.app)
    """
    pytester.makepyfile(test_shop=dedent(forgets))
    result = run(pytester)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*write `with leasemill(app) as jobs:`*"])


def test_it_can_be_blocked(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_shop=dedent(USES))
    result = run(pytester, "-p", "no:leasemill")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'leasemill' not found"])


def test_a_run_that_does_not_use_it_imports_nothing_of_leasemill(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_other=dedent("""
            import sys

            def test_nothing_is_imported():
                assert "pytest_leasemill" in sys.modules
                assert [name for name in sys.modules if name.partition(".")[0] in ("leasemill", "psycopg")] == []
        """)
    )
    run(pytester).assert_outcomes(passed=1)


def test_binding_in_memory_does_not_import_a_driver(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_shop=dedent(USES) + "\n\ndef test_no_driver():\n    import sys\n    assert 'psycopg' not in sys.modules\n"
    )
    run(pytester).assert_outcomes(passed=2)


def test_each_process_of_xdist_has_its_own_stores(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_shop=dedent("""
            import pytest
            import shop

            @pytest.mark.parametrize("number", range(2))
            @pytest.mark.parametrize("store", ["memory", "postgresql"])
            def test_mail(leasemill, store, number):
                with leasemill(shop.app, store=store) as jobs:
                    shop.mail.enqueue(str(number))
                    jobs.drain()
                    assert shop.sent.pop() == str(number)
                    assert jobs.unfinished == []
        """)
    )
    run(pytester, "-n", "2").assert_outcomes(passed=4)


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_async_tests_in_both_modes_of_pytest_asyncio(pytester: pytest.Pytester, mode: str) -> None:
    pytester.makepyfile(
        test_shop=dedent("""
            import pytest
            import shop

            @pytest.mark.asyncio
            async def test_mail(leasemill, leasemill_aevery_crash):
                with leasemill(shop.app) as jobs:
                    await shop.mail.aenqueue("ann")
                    await jobs.adrain()
                assert shop.sent == ["ann"]
                with pytest.raises(AssertionError, match="before_ack of note"):
                    await leasemill_aevery_crash(
                        shop.app,
                        lambda: shop.mail.aenqueue("ann"),
                        effect=lambda: shop.sent,
                        reset=shop.sent.clear,
                    )
        """)
    )
    run(pytester, "-o", f"asyncio_mode={mode}").assert_outcomes(passed=1)


def test_the_marker_is_registered_and_checked(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_shop=dedent("""
            import pytest
            import shop

            @pytest.mark.leasemill(store="file")
            def test_named(leasemill, tmp_path):
                with leasemill(shop.app):
                    assert str(tmp_path) in shop.app.store.name

            @pytest.mark.leasemill("file")
            def test_in_place(leasemill, tmp_path):
                with leasemill(shop.app):
                    assert str(tmp_path) in shop.app.store.name

            @pytest.mark.leasemill(url="file:")
            def test_wrong_name(leasemill):
                pass

            @pytest.mark.leasemill(store="redis")
            def test_wrong_store(leasemill):
                pass
        """)
    )
    result = run(pytester)
    result.assert_outcomes(passed=2, errors=2)
    result.stdout.fnmatch_lines(['*write @pytest.mark.leasemill(store="file")'])
    result.stdout.fnmatch_lines(["*no test store 'redis': write one of memory, file, postgresql"])


class TestApps:
    """ini `leasemill_apps`."""

    def test_every_test_has_an_empty_store(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(
            billing="from leasemill import App\napp = App()\n",
            test_shop=dedent("""
                import billing
                import pytest
                import shop

                @pytest.mark.parametrize("number", range(2))
                def test_nothing_is_asked_for(number):
                    assert shop.app.store.name == "memory:"
                    assert shop.app.store is billing.app.store
                    assert shop.app.store.totals().seq == 0
                    shop.mail.enqueue("ann")

                def test_the_fixture_sees_the_same(leasemill):
                    shop.mail.enqueue("ann")
                    with leasemill(shop.app) as jobs:
                        assert jobs.enqueued() == [{"to": "ann"}]
                        jobs.drain()
                    assert shop.app.store.name == "memory:"
                    with leasemill(shop.app, store="file") as jobs:
                        assert jobs.enqueued() == []

                @pytest.mark.leasemill(store="file")
                def test_the_marker_counts(leasemill):
                    assert shop.app.store.name.startswith("file:")
            """),
        )
        pytester.makeini("[pytest]\naddopts = --strict-config\npythonpath = .\nleasemill_apps = shop:app billing:app\n")
        run(pytester).assert_outcomes(passed=4)

    @pytest.mark.parametrize(
        ("named", "line"),
        [
            ("shop", "*leasemill_apps: 'shop' does not name an app: write MODULE:APP*"),
            ("shop:application", "*leasemill_apps: shop has no 'application'. Did you mean shop:app[?]*"),
            ("shap:app", "*leasemill_apps: there is no module 'shap' here*"),
        ],
    )
    def test_a_name_that_is_wrong_is_refused(self, pytester: pytest.Pytester, named: str, line: str) -> None:
        pytester.makepyfile(test_one="def test_one():\n    pass\n")
        pytester.makeini(f"[pytest]\nleasemill_apps = {named}\n")
        result = run(pytester)
        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines([line])


def test_without_binaries_the_error_names_what_to_install(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEASEMILL_TEST_POSTGRES_URL", raising=False)
    monkeypatch.delenv("LEASEMILL_TEST_POSTGRES_BIN", raising=False)
    pytester.makeconftest(
        "import leasemill.testing.postgres as postgres\n"
        "postgres._wheel_folders = postgres._system_folders = lambda: []\n"
    )
    pytester.makepyfile(test_one="def test_one(leasemill_postgres):\n    pass\n")
    result = run(pytester)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(['*no PostgreSQL binaries found: pip install "leasemill[[]testing]", or *'])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_without_psycopg_the_error_names_what_to_install(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import sys\nsys.modules['psycopg'] = None\n")
    pytester.makepyfile(test_one="def test_one(leasemill_postgres):\n    pass\n")
    result = run(pytester)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(['*pip install "leasemill[[]postgres,testing]"'])


def test_the_schema_of_a_named_server_is_removed_at_the_end(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, leasemill_postgres_schema: object
) -> None:
    import psycopg  # noqa: PLC0415

    from leasemill.testing.database import PostgresSchema  # noqa: PLC0415

    assert isinstance(leasemill_postgres_schema, PostgresSchema)
    conninfo = leasemill_postgres_schema.conninfo
    monkeypatch.setenv("LEASEMILL_TEST_POSTGRES_URL", conninfo)
    pytester.makepyfile(
        test_one=dedent("""
            import psycopg

            def test_one(leasemill_postgres):
                with psycopg.connect(leasemill_postgres.conninfo) as connection:
                    (found,) = connection.execute("select count(*) from pg_namespace where nspname = %s",
                                                  [leasemill_postgres.schema]).fetchone()
                    assert found == 1
                print("schema", leasemill_postgres.schema)
        """)
    )
    result = run(pytester, "-s")
    result.assert_outcomes(passed=1)
    schema = next(line.split()[-1] for line in result.outlines if line.startswith(("schema", ".schema")))
    with psycopg.connect(conninfo) as connection:
        assert connection.execute("select from pg_namespace where nspname = %s", [schema]).fetchone() is None


def test_it_is_part_of_the_wheel(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parent.parent
    document = tomllib.loads((root / "pyproject.toml").read_text())
    assert document["project"]["entry-points"]["pytest11"] == {"leasemill": "pytest_leasemill"}
    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, root],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    listed = subprocess.run(
        [sys.executable, "-m", "zipfile", "-l", wheel], capture_output=True, text=True, check=True
    ).stdout
    assert "pytest_leasemill.py" in listed
    assert "leasemill/testing/crash.py" in listed
