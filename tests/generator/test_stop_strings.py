"""Stop strings over any cut of the text: the earliest match wins, and nothing is held back without need."""

from hypothesis import given
from hypothesis import strategies as st

from services.generator.frontend.stop_strings import StopStrings

texts = st.text(alphabet="abAB", max_size=30)
stops = st.lists(st.text(alphabet="abAB", min_size=1, max_size=4), min_size=1, max_size=4)


def expected(text, stop_list):
    found = [(text.find(stop), -len(stop), stop) for stop in stop_list if stop in text]
    if not found:
        return text, None
    at, _, stop = min(found)
    return text[:at], stop


@given(texts, stops, st.integers(1, 5))
def test_any_cut_of_the_text_gives_the_same_answer(text, stop_list, size):
    matcher = StopStrings(stop_list)
    shown = "".join(matcher.push(text[i : i + size]) for i in range(0, len(text), size))
    if matcher.matched is None:
        shown += matcher.flush()
    # Fed in pieces, a match is taken as soon as it is complete, so an earlier one that completes later in the same text loses
    # only when it had not begun to show: compare with the text up to where the match was complete.
    seen = text if matcher.matched is None else text[: len(shown) + len(matcher.matched)]
    assert shown == expected(seen, stop_list)[0]
    assert (matcher.matched is None) == all(stop not in text for stop in stop_list)


@given(texts, stops)
def test_only_a_beginning_of_a_stop_string_is_held_back(text, stop_list):
    matcher = StopStrings(stop_list)
    shown = matcher.push(text)
    if matcher.matched is None:
        held = text[len(shown) :]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stop_list)


def test_a_partial_stop_string_is_never_shown():
    matcher = StopStrings(["DEFGHIJ"])
    assert [matcher.push(piece) for piece in ("ABC", "DEF", "GH", "IJK")] == ["ABC", "", "", ""]
    assert matcher.matched == "DEFGHIJ"


def test_no_stop_strings_hold_nothing_back():
    assert StopStrings([]).push("anything") == "anything"
