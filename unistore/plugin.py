"""The one import of whoever adds a format or a family; see `unistore.converters.plugin`."""

from unistore.converters.plugin import *  # noqa: F403
from unistore.converters.plugin import __all__ as __all__  # noqa: PLC0414
