"""Clients of the two servers that with_servers.py runs."""

import os

import anthropic
import openai
import pytest

URL = os.environ["FORERUN_URL"].rstrip("/")
KEY_URL = os.environ["FORERUN_KEY_URL"].rstrip("/")
KEY = os.environ["FORERUN_KEY"]


@pytest.fixture(scope="session")
def base():
    return URL


@pytest.fixture(scope="session")
def chatter():
    return openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="session")
def claude():
    return anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)


@pytest.fixture(scope="session")
def model(chatter):
    return chatter.models.list().data[0].id


@pytest.fixture(scope="session")
def locked():
    """Clients of the locked server: how each looks with a given key."""
    return {
        "openai": lambda key: openai.OpenAI(base_url=f"{KEY_URL}/v1", api_key=key, max_retries=0),
        "anthropic": lambda key: anthropic.Anthropic(base_url=KEY_URL, api_key=key, max_retries=0),
        "key": KEY,
    }
