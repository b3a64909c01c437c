"""OpenAI's own client against a gateway: URL, a prompt in text, and the whole answer's text, of 40 tokens.

The gateway allows two requests at a time, answers of 64 tokens, and prompts of words.
"""

import sys

import openai

url, prompt, whole = sys.argv[1:]
# Without retries: a refusal is to be seen.
client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60)
ask, chat = client.completions.create, client.chat.completions.create
messages = [{"role": "user", "content": prompt}]


def equal(found, wanted):
    assert found == wanted, f"{found!r} is not {wanted!r}"


def refused(error, call):
    try:
        call()
    except error as raised:
        return raised
    raise AssertionError(f"no {error.__name__}")


equal([model.id for model in client.models.list()], ["m"])

answer = ask(model="m", prompt=prompt)
equal(answer.choices[0].text, whole)
equal(answer.choices[0].finish_reason, "stop")
equal((answer.usage.prompt_tokens, answer.usage.completion_tokens), (3, 40))

answer = ask(model="m", prompt=prompt, max_tokens=7)
equal(answer.choices[0].finish_reason, "length")
equal(answer.usage.completion_tokens, 7)
assert whole.startswith(answer.choices[0].text), answer

events = list(ask(model="m", prompt=prompt, stream=True, stream_options={"include_usage": True}))
equal("".join(event.choices[0].text for event in events if event.choices), whole)
equal(events[-1].usage.total_tokens, 43)

answer = chat(model="m", messages=messages)
equal(answer.choices[0].message.role, "assistant")
equal(answer.choices[0].message.content, whole)

events = list(chat(model="m", messages=messages, stream=True))
equal("".join(event.choices[0].delta.content or "" for event in events), whole)
equal([e.choices[0].finish_reason for e in events if e.choices[0].finish_reason], ["stop"])

stop = whole.split()[10]
for stream in (False, True):
    answer = ask(model="m", prompt=prompt, stop=stop, stream=stream)
    parts = list(answer) if stream else [answer]
    equal("".join(part.choices[0].text for part in parts), whole[: whole.find(stop)])
    equal(parts[-1].choices[0].finish_reason, "stop")

error = refused(openai.BadRequestError, lambda: ask(model="m", prompt=prompt, max_tokens=65))
equal((error.status_code, error.param), (400, "max_tokens"))
refused(openai.NotFoundError, lambda: ask(model="other", prompt=prompt))

# The cancelled sequences of `stop` may still be in flight, so the first streams may be refused too.
streams = []
while len(streams) < 2:
    try:
        streams.append(ask(model="m", prompt=prompt, stream=True))
    except openai.RateLimitError:
        pass
error = refused(openai.RateLimitError, lambda: ask(model="m", prompt=prompt))
equal(error.status_code, 429)
for stream in streams:
    equal("".join(event.choices[0].text for event in stream), whole)
print("all checked")
