"""An image as a URL that contains it, so that a page stays one file."""

import base64
import io

import numpy as np
from jaxtyping import UInt8

QUALITY = 88


def jpeg_url(pixels: UInt8[np.ndarray, "h w 3"]) -> str:
    """The image as JPEG in a data URL.

    >>> jpeg_url(np.zeros((8, 8, 3), dtype=np.uint8))[:23]
    'data:image/jpeg;base64,'
    """
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
