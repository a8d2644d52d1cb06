"""What the engine says of images at start, and the images that memory is measured with."""

import pytest

from services.generator.engine.build import build_model
from services.generator.engine.images import _largest_images
from services.generator.images.recipes import read_image_recipe
from services.generator.settings import GeneratorSettings
from shared.settings.errors import StartError
from tests.fakes.tiny_qwen_vision import save_tiny_qwen2_vl
from tests.fakes.tiny_vision import save_tiny_llava


def ready(folder, **changes):
    return build_model(GeneratorSettings(model=str(folder), kv_cache_memory_bytes=2**22, **changes)).ready


@pytest.mark.parametrize(("changes", "rows"), [({}, 4096), ({"encoder_cache_size": 40}, 40)])
def test_rows_of_a_request_are_those_of_the_cache(tmp_path, changes, rows):
    assert ready(save_tiny_llava(tmp_path), max_model_len=64, **changes).max_image_rows == rows


def test_a_long_context_has_rows_for_all_of_it(tmp_path):
    folder = save_tiny_llava(tmp_path, text={"max_position_embeddings": 5000})
    assert ready(folder).max_image_rows == 5000


def test_a_model_of_text_and_made_up_weights_have_no_images(tiny_llama, tmp_path):
    assert ready(tiny_llama).max_image_rows == 0
    assert ready(save_tiny_llava(tmp_path), load_format="dummy").max_image_rows == 0


def test_a_placeholder_beyond_the_vocabulary_stops_the_start(tmp_path):
    folder = save_tiny_llava(tmp_path)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"image_token_index": 259', '"image_token_index": 260'))
    with pytest.raises(StartError, match="placeholder 260 is beyond the vocabulary of 260"):
        ready(folder)


@pytest.mark.parametrize(
    ("step_rows", "image_rows", "sizes"), [(100, 200, [36, 36]), (10, 200, [36]), (100, 20, [16] * 6)]
)
def test_memory_is_measured_with_images_that_requests_may_have(tmp_path, step_rows, image_rows, sizes):
    """This model takes up to 48 rows, of which a square fills 6 x 6."""
    recipe = read_image_recipe(save_tiny_qwen2_vl(tmp_path))
    assert [image.num_rows for image in _largest_images(recipe, step_rows, image_rows)] == sizes
