// OpenAI's own client for JavaScript.
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { ResponsesWS } from "openai/resources/responses/ws";
import { z } from "zod";

const City = z.object({ name: z.string(), country: z.string(), population: z.number().int(), capital: z.boolean() });

function client(to) {
  return new OpenAI({ baseURL: to.url, apiKey: "unused", maxRetries: 0 });
}

const user = (content) => ({ role: "user", content });
const isChat = (to) => to.way === "chat";
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false };
const weather = { type: "function", name: "get_weather", description: "Current weather of a city.", parameters, strict: true };

const respond = (to, input, more) => client(to).responses.create({ model: to.model, input, ...more });
const complete = (to, messages, more) => client(to).chat.completions.create({ model: to.model, messages, ...more });

export async function text(to, input) {
  if (!isChat(to)) return (await respond(to, input)).output_text;
  const { choices, usage } = await complete(to, [user(input)]);
  if (choices[0].finish_reason !== "stop" || !usage.completion_tokens) throw new Error(JSON.stringify(usage));
  return choices[0].message.content;
}

export async function stream(to, input) {
  const pieces = [];
  const helper = isChat(to)
    ? client(to).chat.completions.stream({ model: to.model, messages: [user(input)] }).on("content", (delta) => pieces.push(delta))
    : client(to).responses.stream({ model: to.model, input }).on("response.output_text.delta", ({ delta }) => pieces.push(delta));
  const final = isChat(to) ? await helper.finalContent() : (await helper.finalResponse()).output_text;
  if (final !== pieces.join("")) throw new Error(final);
  return pieces;
}

async function runTools(to, input, stream) {
  const asked = zodFunction({
    name: "get_weather",
    description: "Current weather of a city.",
    parameters: z.object({ city: z.string() }),
    function: () => to.report,
  });
  const runner = client(to).chat.completions.runTools({ model: to.model, messages: [user(input)], tools: [asked], stream });
  const text = await runner.finalContent();
  const roles = runner.messages.map((message) => message.role).join();
  if (roles !== "user,assistant,tool,assistant") throw new Error(roles);
  return text;
}

export async function tool_loop(to, input) {
  if (isChat(to)) return runTools(to, input, false);
  const first = await respond(to, input, { tools: [weather] });
  const call = first.output.find((item) => item.type === "function_call");
  const answered = { type: "function_call_output", call_id: call.call_id, output: to.report };
  return (await respond(to, [answered], { tools: [weather], previous_response_id: first.id })).output_text;
}

export const streamed_tool_loop = (to, input) => runTools(to, input, true);

export async function structured(to, input) {
  const { responses, chat } = client(to);
  if (!isChat(to)) return (await responses.parse({ model: to.model, input, text: { format: zodTextFormat(City, "city") } })).output_parsed;
  const asked = { model: to.model, messages: [user(input)], response_format: zodResponseFormat(City, "city") };
  return (await chat.completions.parse(asked)).choices[0].message.parsed;
}

export async function history(to, name, asked) {
  if (!isChat(to)) {
    const first = await respond(to, name);
    return [first.output_text, (await respond(to, asked, { previous_response_id: first.id })).output_text];
  }
  const first = (await complete(to, [user(name)])).choices[0].message;
  return [first.content, (await complete(to, [user(name), first, user(asked)])).choices[0].message.content];
}

export async function reasoning(to, input) {
  if (!isChat(to)) {
    const { output, output_text } = await respond(to, input, { reasoning: { effort: "medium", summary: "auto" } });
    return [output[0].summary.map((part) => part.text).join("").trim(), output_text];
  }
  const { message } = (await complete(to, [user(input)], { reasoning_effort: "medium" })).choices[0];
  return [message.reasoning_content.trim(), message.content];
}

export const error = (to) => (isChat(to) ? complete(to, [user("Hi")], { temperature: 9 }) : respond(to, "Hi", { temperature: 9 }));

export async function resume(to, input) {
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

export async function converse(to, name, asked) {
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

export async function lists(to, input) {
  const opened = client(to);
  const { id } = await opened.responses.create({ model: to.model, input });
  const items = [];
  for await (const item of opened.responses.inputItems.list(id)) items.push(item.content[0].text);
  const models = [];
  for await (const model of opened.models.list()) models.push(model.id);
  const { input_tokens: tokens } = await opened.responses.inputTokens.count({ model: to.model, input });
  return { items, models, tokens };
}

export async function websocket(to, name, asked) {
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
