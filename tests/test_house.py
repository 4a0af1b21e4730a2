"""What `make house` counts, and what it does not."""

from __future__ import annotations

from tools.house import House, circles, read, words_that_tests_set


def of(**sources: str) -> House:
    return House(read(source, name) for name, source in sources.items())


def test_what_a_class_inherits_counts() -> None:
    found = of(
        a="class A:\n def a(self): ...\n def b(self): ...\n",
        b="class B(A):\n def b(self): ...\n def c(self): ...\nclass C:\n def __init__(self, a, /, b, *, c): ...\n",
    )
    assert found.methods_of("B") == {"a", "b", "c"} and found.sizes()["B"] == 3
    assert found.parameters()["C"] == 3
    assert found.lone_bases() == ["A"]


def test_a_protocol_is_no_base() -> None:
    assert of(a="class A(Protocol[T]): ...\nclass B(A): ...\n").lone_bases() == []


def test_blank_lines_comments_and_docstrings_are_no_code() -> None:
    assert read('"""Doc.\n\nMore.\n"""\n\n# why\nx = 1  # what\ndef f():\n    """Doc."""\n    return x\n').code == 3


def test_a_circle_is_found_through_types_and_functions() -> None:
    assert circles({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]}) == [["a", "b", "c"]]
    assert circles({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}) == []
    lazy = "if TYPE_CHECKING:\n from b import B\n", "def f():\n from a import A\n"
    assert of(a=lazy[0], b=lazy[1], c="import a.x\n").circles() == [["a", "b"]]


def test_a_relative_import_is_of_the_package() -> None:
    assert read("from .b import c\nfrom .. import d\n", "top.inner.a").imports == {"top.inner.b.c", "top.d"}
    assert read("from .b import c\n", "top.inner", package=True).imports == {"top.inner.b.c"}


def test_a_long_function_has_more_than_sixty_lines() -> None:
    body = "def f():\n" + " x = 1\n" * 59
    assert read(body).long_functions == []
    assert read(body + " x = 1\n", "a").long_functions == ["a:1 f"]


def test_what_is_set_from_outside_is_set_later() -> None:
    owner = "class Log:\n def __init__(self):\n  self.waits = self.ends = 0\ndef f(log):\n log.waits = 1\n"
    other = """
def wired(self, log: Log, message: pb.Command) -> None:
    log.waits = 1
    self.log.ends += 1
    message.waits = 1
    log.foreign = 1
def made():
    log = Log()
    log.waits = 1
    part = log.part
    part.waits = 1
    for log.ends in (): ...
"""
    assert of(a=owner, b=other).set_later() == ["b:3 log.waits", "b:4 self.log.ends"]


def test_a_setting_is_set_by_a_keyword_a_text_or_a_variable() -> None:
    settings = "@dataclass(frozen=True)\nclass OwnSettings:\n a: int = 1\n b: int = 1\n c: int = 1\n d: int = 1\n"
    words = words_that_tests_set(["OwnSettings(a=1)\n{'b': 2}\n", "HELIOGRAPH_BROKER__OWN__C=1", "d = 1; d == 1"])
    assert of(a=settings).unset_settings(words) == ["OwnSettings.d"]
