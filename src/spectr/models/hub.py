"""Checks with one quick request whether the hub has a model; transformers retries for half a minute."""

import urllib.error
import urllib.request

from huggingface_hub import constants, try_to_load_from_cache

__all__ = ["why_not_on_hub"]

_TIMEOUT = 10.0  # seconds


def why_not_on_hub(model: str) -> str | None:
    """Return why `model` cannot be fetched from the hub, as the end of a sentence; None if it can, or is cached."""
    if model.count("/") > 1 or not all(part.strip() for part in model.split("/")):
        return "there is no such folder, and a hub id has the form owner/name"
    if isinstance(try_to_load_from_cache(model, "config.json"), str):
        return None
    if constants.HF_HUB_OFFLINE:
        return "there is no such folder, it is not in the hub's cache, and HF_HUB_OFFLINE is set"
    request = urllib.request.Request(f"{constants.ENDPOINT}/api/models/{model}", method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=_TIMEOUT).close()
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return "there is no such folder, and the hub has no model of this name"
        return None  # gated, private or busy: transformers gives the reason
    except (OSError, ValueError):
        return "there is no such folder, and the hub cannot be reached"
    return None
