"""An image recipe for tests of what is around it: every pixel stays and is a row."""

import hashlib

from services.generator.core.images import Pixels
from services.generator.images.recipe import PreparedImage


class RowPerPixel:
    def __init__(self, token_id):
        self.image_token_id = token_id

    def grid_for(self, height, width):
        return 1, height, width

    def prepare(self, image):
        data = image.tobytes()
        grid = self.grid_for(image.height, image.width)
        return PreparedImage(grid, hashlib.sha256(data).digest(), Pixels(image.height, image.width, data))
