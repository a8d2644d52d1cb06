"""The RAG example: splitting, search order, the prompt's bound, the citation rule, and the whole flow over HTTP."""

import socket
from pathlib import Path

import pytest

from examples.rag import __main__ as rag
from examples.rag.answer import MAX_PASSAGE_CHARS, MAX_QUESTION_CHARS, build_messages, cite
from examples.rag.collection import MAX_PASSAGE_WORDS, CollectionError, Passage, read_collection, split_document
from examples.rag.retrieval import EMBEDDING_BATCH, NUM_RERANKED, NUM_RETRIEVED, Hit, search
from tests.examples.fake_gateway import FakeGateway, serve

LAMPS = "The lamp keeper lights each lamp at 21:15 with seal oil.\n\nA storm lamp burns for 9 hours."
GOATS = "# Goats\n\nThe goat on the island is called Bertil.\n"
FERRY = "# The ferry\n\nThe ferry to Skarv leaves at 06:40. The ferry is blue.\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "lamps.txt").write_text(LAMPS, encoding="utf-8")
    (tmp_path / "goats.md").write_text(GOATS, encoding="utf-8")
    (tmp_path / "ferry.md").write_text(FERRY, encoding="utf-8")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    return tmp_path


def hit(text: str, title: str = "T", file: str = "t.md") -> Hit:
    return Hit(Passage(file, title, text), cosine=0.5, relevance=0.5)


# --- reading and splitting ---


def test_a_document_is_split_at_blank_lines_and_every_passage_knows_its_title() -> None:
    passages = split_document("a/b.md", "# The  title\n\nOne\nline.\n\n\n## Part\n\nTwo.\n\n## Next\nThree.\n")
    assert [(p.file, p.title, p.text) for p in passages] == [
        ("a/b.md", "The  title", "One line."),
        ("a/b.md", "The  title", "Part: Two."),
        ("a/b.md", "The  title", "Next: Three."),
    ]


def test_a_document_without_a_heading_is_titled_by_its_file() -> None:
    assert split_document("notes/tides.txt", "High at noon.")[0].titled_text == "tides\nHigh at noon."


def test_a_long_paragraph_is_cut_between_sentences() -> None:
    sentence = "word " * 49 + "end."
    passages = split_document("x.md", " ".join([sentence] * 5))
    assert [len(p.text.split()) for p in passages] == [100, 100, 50]
    assert all(p.text.endswith("end.") for p in passages)


def test_a_sentence_longer_than_a_passage_is_cut_too_and_nothing_is_lost() -> None:
    words = [f"w{i}" for i in range(2 * MAX_PASSAGE_WORDS + 7)]
    passages = split_document("x.md", " ".join(words))
    assert [len(p.text.split()) for p in passages] == [MAX_PASSAGE_WORDS, MAX_PASSAGE_WORDS, 7]
    assert " ".join(p.text for p in passages).split() == words


def test_a_folder_is_read_in_order_and_other_files_are_left_alone(folder: Path) -> None:
    assert [p.file for p in read_collection(folder)] == ["ferry.md", "goats.md", "lamps.txt", "lamps.txt"]


def test_a_folder_that_is_missing_or_empty_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match="no folder"):
        read_collection(tmp_path / "nowhere")
    with pytest.raises(CollectionError, match="no text"):
        read_collection(tmp_path)


def test_the_bundled_collection_is_what_its_readme_says() -> None:
    passages = read_collection(rag.DEFAULT_COLLECTION)
    files = sorted(rag.DEFAULT_COLLECTION.glob("*.md"))
    assert 24 <= len(files) <= 40
    assert {p.file for p in passages} == {path.name for path in files}
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert text.startswith("# "), path.name
        assert 80 <= len(text.split()) <= 250, path.name
    assert all(len(p.text.split()) <= MAX_PASSAGE_WORDS and len(p.text) <= MAX_PASSAGE_CHARS for p in passages)


# --- search ---


def test_search_orders_by_cosine() -> None:
    vectors = [[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-1.0, 0.0]]
    passages = [Passage("f", "t", str(i)) for i in range(4)]
    hits = search([0.0, 1.0], vectors, passages, top=3)
    assert [(h.passage.text, h.cosine) for h in hits] == [("2", 1.0), ("1", 0.8), ("0", 0.0)]


# --- prompt ---


def test_the_prompt_numbers_the_passages_and_is_bounded() -> None:
    [message] = build_messages("q" * 5000, [hit("x" * 5000)] * NUM_RERANKED)
    content = str(message["content"])
    assert [line[:4] for line in content.splitlines() if line.startswith("[")] == ["[1] ", "[2] ", "[3] "]
    assert len(content) <= NUM_RERANKED * (MAX_PASSAGE_CHARS + 5) + MAX_QUESTION_CHARS + 100


# --- citations ---


def test_a_passage_that_holds_the_words_of_the_answer_supports_it() -> None:
    hits = [hit("The goat is called Bertil."), hit("The ferry to Skarv leaves at 06:40.")]
    citations = cite("When does the ferry leave?", "The ferry leaves for Skarv at 06:40.", hits)
    assert [(c.number, c.is_supporting) for c in citations] == [(1, False), (2, True)]


def test_words_of_the_question_prove_nothing() -> None:
    [citation] = cite("How old is the blue ferry?", "The blue ferry is ancient.", [hit("The ferry is blue.")])
    assert (citation.support, citation.is_supporting) == (0.0, False)


def test_an_answer_that_only_repeats_the_question_is_judged_by_all_its_words() -> None:
    [citation] = cite("Is the ferry blue?", "The ferry is blue.", [hit("The ferry is blue.")])
    assert (citation.support, citation.is_supporting) == (1.0, True)


def test_a_wrong_number_is_not_supported_however_much_else_agrees() -> None:
    [citation] = cite("When?", "The ferry to Skarv leaves at 07:40.", [hit("The ferry to Skarv leaves at 06:40.")])
    assert citation.support == pytest.approx(3 / 4)
    assert not citation.is_supporting


def test_an_empty_answer_is_supported_by_nothing() -> None:
    [citation] = cite("When?", "", [hit("The ferry.")])
    assert not citation.is_supporting


# --- the whole flow ---


def ask(fake: FakeGateway, *more: str) -> int:
    return rag.main(["--base-url", fake.base_url, *more])


def test_the_stages_run_in_order_and_the_answer_is_cited(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question = "When does the ferry to Skarv leave?"
    with serve(FakeGateway(answer="The ferry leaves at 06:40.")) as fake:
        assert ask(fake, "--collection", str(folder), "--question", question) == 0
    assert fake.paths() == [
        "/ready", "/v1/models", "/v1/embeddings", "/v1/embeddings", "/v1/rerank", "/v1/chat/completions",
    ]  # fmt: skip
    ingest, embed_question = fake.bodies("/v1/embeddings")
    assert (ingest["model"], ingest["encoding_format"], len(ingest["input"])) == ("emb", "base64", 4)
    assert embed_question["input"] == [question]
    [reranked] = fake.bodies("/v1/rerank")
    assert (reranked["model"], reranked["query"], reranked["top_n"]) == ("rer", question, NUM_RERANKED)
    assert reranked["documents"][0].startswith("The ferry\n")
    [chat] = fake.bodies("/v1/chat/completions")
    assert (chat["model"], chat["stream"], chat["temperature"]) == ("gen", True, 0)
    assert "[1] The ferry to Skarv leaves at 06:40." in chat["messages"][0]["content"]

    lines = capsys.readouterr().out.splitlines()
    labels = [line[:11].strip() for line in lines if line]
    assert labels == [
        "models", "ingested", "question", "retrieved", "reranked", "answer", "answered",
        "cited", "also read", "also read",
    ]  # fmt: skip
    assert next(line for line in lines if line.startswith("answer ")) == "answer     The ferry leaves at 06:40. "
    assert next(line for line in lines if line.startswith("cited")).startswith("cited      [1] The ferry (ferry.md) ·")


def test_an_answer_from_nowhere_is_not_given_a_source(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve(FakeGateway(answer="Penguins invented teleportation.")) as fake:
        assert ask(fake, "--collection", str(folder), "--question", "Who keeps the lamp?") == 0
    assert "cited      nothing: no passage supports this answer" in capsys.readouterr().out


def test_passages_are_embedded_in_batches_and_matched_by_index(tmp_path: Path) -> None:
    text = "# Days\n\n" + "\n\n".join("The storm came." if i != 40 else "The goat came." for i in range(70))
    (tmp_path / "days.md").write_text(text, encoding="utf-8")
    with serve(FakeGateway(answer="It came.")) as fake:
        assert ask(fake, "--collection", str(tmp_path), "--question", "goat") == 0
    sizes = [len(body["input"]) for body in fake.bodies("/v1/embeddings")]
    assert sizes == [EMBEDDING_BATCH, EMBEDDING_BATCH, 70 - 2 * EMBEDDING_BATCH, 1]
    documents = fake.bodies("/v1/rerank")[0]["documents"]
    assert len(documents) == NUM_RETRIEVED
    assert documents[0] == "Days\nThe goat came."


def test_without_a_question_the_default_ones_are_asked() -> None:
    with serve(FakeGateway(answer="Yes.")) as fake:
        assert ask(fake) == 0
    assert [body["query"] for body in fake.bodies("/v1/rerank")] == list(rag.DEFAULT_QUESTIONS)


def test_the_api_key_is_sent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # a gateway on this machine is not asked through a proxy
    with serve(FakeGateway(answer="Yes.")) as fake:
        assert ask(fake, "--collection", str(folder), "--api-key", "k-1", "--question", "goat") == 0
    assert set(fake.authorizations) == {"Bearer k-1"}


def fails(capsys: pytest.CaptureFixture[str], message: str) -> bool:
    error = capsys.readouterr().err
    return error.startswith("error: ") and message in error and error.count("\n") == 1


def test_no_gateway(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert rag.main(["--base-url", f"http://127.0.0.1:{closed.getsockname()[1]}/v1"]) == 1
    assert fails(capsys, "no gateway answers at http://127.0.0.1:")


@pytest.mark.parametrize(("status", "message"), [(503, "is not ready yet"), (404, "is this a Trivium gateway?")])
def test_a_gateway_that_is_not_ready(status: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with serve(FakeGateway(ready_status=status)) as fake:
        assert ask(fake) == 1
    assert fake.paths() == ["/ready"]
    assert fails(capsys, message)


def test_a_gateway_that_serves_no_reranker(capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeGateway()
    fake.models.pop()
    with serve(fake):
        assert ask(fake) == 1
    assert fails(capsys, "serves no model for: rerank")


def test_an_error_of_the_gateway_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with serve(FakeGateway(embed_status=400)) as fake:
        assert ask(fake) == 1
    assert fails(capsys, "no room")


def test_an_answer_that_breaks_off_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve(FakeGateway(answer="The ferry", is_stream_cut=True)) as fake:
        assert ask(fake, "--collection", str(folder), "--question", "ferry?") == 1
    assert fails(capsys, "broke off")


def test_a_missing_folder_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve(FakeGateway()) as fake:
        assert ask(fake, "--collection", str(tmp_path / "nowhere")) == 1
    assert fails(capsys, "there is no folder")
