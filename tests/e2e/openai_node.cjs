// The official openai client for Node.js through tokid: openai_node.py starts the servers and runs
// this file.
const assert = require("node:assert/strict");
const { test } = require("node:test");
const OpenAI = require("openai");

const tokid = process.env.TOKI_URL;
const llama = process.env.LLAMA_URL;
const client = new OpenAI({
  baseURL: tokid + "/v1",
  apiKey: "sk-no-secret-but-as-long-as-real-ones-are",
  maxRetries: 0,
  timeout: 120000,
});
const messages = [
  { role: "system", content: "the cat could explain how every student read a story ".repeat(11) },
  { role: "user", content: "hello there" },
];
const tools = [{
  type: "function",
  function: {
    name: "get_weather",
    description: "Tells the weather of a city",
    parameters: {
      type: "object",
      properties: { city: { type: "string", enum: ["Paris", "Rome"] } },
      required: ["city"],
    },
  },
}];

const chat = (more = {}) =>
  client.chat.completions.create({ model: "m", messages, max_tokens: 16, temperature: 0, ...more });
const json = async (url, body) => {
  const headers = { "content-type": "application/json" };
  return (await fetch(url, body && { method: "POST", body: JSON.stringify(body), headers })).json();
};

async function within(limit, what, condition) {
  const end = Date.now() + limit;
  while (!(await condition())) {
    assert.ok(Date.now() < end, `not within ${limit} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
const idle = async () => !(await json(llama + "/slots")).some((slot) => slot.is_processing);

test("chat: the second time is a hit with the same text", async () => {
  const first = await chat();
  const { data: again, response } = await client.chat.completions
    .create({ model: "m", messages, max_tokens: 16, temperature: 0 }).withResponse();
  assert.equal(response.headers.get("x-toki-cache"), "hit");
  assert.equal(again.choices[0].message.content, first.choices[0].message.content);
  assert.equal(again.usage.prompt_tokens_details.cached_tokens, again.usage.prompt_tokens - 1);
});

test("chat, streamed, says the same with its usage", async () => {
  const whole = (await chat()).choices[0].message.content;
  let text = "", usage;
  for await (const chunk of await chat({ stream: true, stream_options: { include_usage: true } })) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole);
  assert.ok(usage.prompt_tokens_details.cached_tokens > 0);
});

test("completions, whole and streamed, say the same", async () => {
  const prompt = "the cat could explain the river ".repeat(6);
  const ask = { model: "m", prompt, max_tokens: 12, temperature: 0 };
  const whole = await client.completions.create(ask);
  let text = "";
  for await (const chunk of await client.completions.create({ ...ask, stream: true })) {
    text += chunk.choices[0]?.text ?? "";
  }
  assert.ok(text);
  assert.equal(text, whole.choices[0].text);
});

test("tool calls, whole and streamed, and the turn after them", async () => {
  // A bias makes the random model open one call after the other; the server's grammar makes each a
  // whole one. The last may be cut short, so only the first is looked at.
  const opening = { content: "<tool_call>", parse_special: true };
  const { tokens } = await json(llama + "/tokenize", opening);
  const ask = { tools, tool_choice: "required", max_tokens: 250, logit_bias: { [tokens[0]]: 100 } };
  const isCall = (name, text) => {
    assert.equal(name, "get_weather");
    assert.ok(["Paris", "Rome"].includes(JSON.parse(text).city), text);
  };
  const asked = await chat(ask);
  const call = asked.choices[0].message.tool_calls[0];
  isCall(call.function.name, call.function.arguments);
  let name = "", text = "";
  for await (const chunk of await chat({ ...ask, stream: true })) {
    for (const part of chunk.choices[0]?.delta?.tool_calls ?? []) {
      if (part.index === 0) {
        name += part.function?.name ?? "";
        text += part.function?.arguments ?? "";
      }
    }
  }
  isCall(name, text);
  const turn = { role: "assistant", content: null, tool_calls: [call] };
  const answered = await chat({
    tools, messages: [...messages, turn, { role: "tool", tool_call_id: call.id, content: "sunny" }],
  });
  assert.ok(answered.usage.prompt_tokens_details.cached_tokens >= 0.97 * asked.usage.prompt_tokens);
});

test("two answers to one question", async () => {
  const { choices } = await chat({ n: 2, temperature: 1 });
  assert.deepEqual(choices.map((choice) => choice.index), [0, 1]);
});

test("a stop string ends the answer", async () => {
  const whole = (await chat({ ignore_eos: true, max_tokens: 24 })).choices[0].message.content;
  const stop = whole.trim().split(/\s+/)[3];
  const stopped = await chat({ ignore_eos: true, max_tokens: 24, stop: [stop] });
  assert.equal(stopped.choices[0].finish_reason, "stop");
  assert.equal(stopped.choices[0].message.content, whole.slice(0, whole.indexOf(stop)));
});

test("an aborted stream frees its slot within a second", async () => {
  const stream = await chat({ stream: true, max_tokens: 16000, ignore_eos: true });
  for await (const chunk of stream) {
    assert.ok(chunk);
    break; // leaving the loop aborts the request
  }
  stream.controller.abort();
  await within(1000, "every slot is idle", idle);
  assert.ok((await chat()).choices[0].message.content);
});

test("responses, whole and streamed", async () => {
  const instructions = messages[0].content;
  const limits = { max_output_tokens: 12, temperature: 0 };
  const ask = { model: "m", instructions, input: "hello there", ...limits };
  const first = await client.responses.create(ask);
  const again = await client.responses.create(ask);
  assert.ok(first.output_text);
  assert.equal(again.output_text, first.output_text);
  assert.ok(again.usage.input_tokens_details.cached_tokens >= 80);
  let text = "", last;
  for await (const event of await client.responses.create({ ...ask, stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
    last = event.type;
  }
  assert.equal(last, "response.completed");
  assert.equal(text, first.output_text);
});

test("errors are the client's own", async () => {
  const long = [{ role: "user", content: "the cat ".repeat(12000) }];
  await assert.rejects(chat({ messages: long }), (error) =>
    error instanceof OpenAI.BadRequestError && error.type === "exceed_context_size_error");
  await assert.rejects(chat({ messages: long, stream: true }), OpenAI.BadRequestError);
  await assert.rejects(chat({ id_slot: 99 }), OpenAI.BadRequestError);
  await assert.rejects(client.files.list(), OpenAI.NotFoundError);
});

test("many at once are all answered", async () => {
  const answers = await Promise.all(Array.from({ length: 16 }, (_, n) =>
    chat({ messages: [{ role: "user", content: `the number ${n} and the river` }] })));
  assert.ok(answers.every((answer) => answer.usage.completion_tokens > 0));
});
