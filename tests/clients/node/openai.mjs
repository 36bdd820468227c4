// OpenAI's own client for JavaScript.
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { ResponsesWS } from "openai/resources/responses/ws";
import { z } from "zod";

const City = z.object({ name: z.string(), country: z.string(), population: z.number().int(), capital: z.boolean() });

function client(to) {
  return new OpenAI({ baseURL: to.url, apiKey: "unused", maxRetries: 0 });
}

export async function create(to, { input }) {
  const made = await client(to).responses.create({ model: to.model, input });
  const read = await client(to).responses.retrieve(made.id);
  return { made, read };
}

export async function stream(to, { input }) {
  let text = "";
  let last;
  for await (const event of await client(to).responses.create({ model: to.model, input, stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
    last = event;
  }
  return { text, last };
}

export async function streamHelper(to, { input }) {
  const opened = client(to).responses.stream({ model: to.model, input });
  let text = "";
  opened.on("response.output_text.delta", (event) => (text += event.delta));
  const final = await opened.finalResponse();
  return { text, final: final.output_text };
}

export async function callTool(to, { input, tool, report }) {
  const asked = { model: to.model, tools: [tool] };
  const first = await client(to).responses.create({ ...asked, input });
  const call = first.output.find((item) => item.type === "function_call");
  const answered = { type: "function_call_output", call_id: call.call_id, output: report };
  const second = await client(to).responses.create({ ...asked, input: [answered], previous_response_id: first.id });
  return { call, text: second.output_text };
}

export async function parse(to, { input }) {
  const response = await client(to).responses.parse({ model: to.model, input, text: { format: zodTextFormat(City, "city") } });
  return response.output_parsed;
}

export async function resume(to, { input }) {
  const { responses } = client(to);
  let id, cursor;
  let text = "";
  const opened = await responses.create({ model: to.model, input, background: true, stream: true });
  for await (const event of opened) {
    if (event.type === "response.created") id = event.response.id;
    if (event.type === "response.output_text.delta") text += event.delta;
    cursor = event.sequence_number;
    if (text) break;
  }
  let last;
  for await (const event of await responses.retrieve(id, { stream: true, starting_after: cursor })) {
    if (event.type === "response.output_text.delta") text += event.delta;
    last = event;
  }
  return { text, last: last.type, final: (await responses.retrieve(id)).output_text };
}

export async function cancel(to) {
  const { responses } = client(to);
  const { id } = await responses.create({ model: to.model, input: "/hang 3", background: true });
  const { status } = await responses.cancel(id);
  await responses.delete(id);
  return { status };
}

export async function converse(to, { name, asked }) {
  const opened = client(to);
  const { id } = await opened.conversations.create();
  const texts = [];
  for (const input of [name, asked]) {
    texts.push((await opened.responses.create({ model: to.model, input, conversation: id })).output_text);
  }
  const items = [];
  for await (const item of opened.conversations.items.list(id, { order: "asc" })) items.push(item.role);
  return { texts, items };
}

export async function lists(to, { input }) {
  const opened = client(to);
  const { id } = await opened.responses.create({ model: to.model, input });
  const items = [];
  for await (const item of opened.responses.inputItems.list(id)) items.push(item.content[0].text);
  const models = [];
  for await (const model of opened.models.list()) models.push(model.id);
  const { input_tokens: tokens } = await opened.responses.inputTokens.count({ model: to.model, input });
  return { items, models, tokens };
}

export async function websocket(to, { name, asked }) {
  const socket = new ResponsesWS(client(to));
  const said = { type: "response.create", model: to.model, store: false };
  const texts = [];
  let previous;
  try {
    socket.send({ ...said, input: name });
    for await (const { type, message, error } of socket.stream()) {
      if (type === "error" || message?.type === "error") throw new Error(JSON.stringify(message ?? error));
      if (message?.type !== "response.completed") continue;
      texts.push(message.response.output.at(-1).content[0].text);
      if (previous) break;
      previous = message.response.id;
      socket.send({ ...said, input: asked, previous_response_id: previous });
    }
  } finally {
    socket.close();
  }
  return texts;
}

export async function reason(to, { input }) {
  const response = await client(to).responses.create({ model: to.model, input, reasoning: { effort: "medium", summary: "auto" } });
  return response;
}

export async function refused(to) {
  await client(to).responses.create({ model: to.model, input: "Hi", temperature: 9 });
}

function said(input) {
  return [{ role: "user", content: input }];
}

export async function complete(to, { input, asked = {} }) {
  return client(to).chat.completions.create({ model: to.model, messages: said(input), ...asked });
}

export async function completeStream(to, { input }) {
  const asked = { model: to.model, messages: said(input), stream: true, stream_options: { include_usage: true } };
  const chunks = [];
  for await (const chunk of await client(to).chat.completions.create(asked)) chunks.push(chunk);
  return chunks;
}

export async function completeStreamHelper(to, { input }) {
  const opened = client(to).chat.completions.stream({ model: to.model, messages: said(input) });
  let text = "";
  opened.on("content", (delta) => (text += delta));
  const final = await opened.finalContent();
  return { text, final };
}

export async function completeParsed(to, { input }) {
  const asked = { model: to.model, messages: said(input), response_format: zodResponseFormat(City, "city") };
  return (await client(to).chat.completions.parse(asked)).choices[0].message.parsed;
}

export async function runTools(to, { input, report, stream }) {
  const parameters = z.object({ city: z.string() });
  const given = [];
  const weather = zodFunction({
    name: "get_weather",
    description: "Current weather of a city.",
    parameters,
    function: (args) => {
      given.push(args);
      return report;
    },
  });
  const runner = client(to).chat.completions.runTools({ model: to.model, messages: said(input), tools: [weather], stream });
  const text = await runner.finalContent();
  return { text, given, roles: runner.messages.map((message) => message.role) };
}
