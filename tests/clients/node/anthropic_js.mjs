// Anthropic's own client for JavaScript.
import Anthropic from "@anthropic-ai/sdk";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { z } from "zod";

const City = z.object({ name: z.string(), country: z.string(), population: z.number().int(), capital: z.boolean() });
const input_schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false };
const weather = { name: "get_weather", description: "Current weather of a city.", input_schema, strict: true };

const user = (content) => ({ role: "user", content });
const client = (to) => new Anthropic({ baseURL: to.url.replace(/\/v1$/, ""), apiKey: "unused", maxRetries: 0 });
const asked = (to, messages, more) => ({ model: to.model, max_tokens: 2048, messages, ...more });
const create = (to, messages, more) => client(to).messages.create(asked(to, messages, more));
const textOf = (message) => message.content.filter((block) => block.type === "text").map((block) => block.text).join("");

export async function text(to, input) {
  const message = await create(to, [user(input)]);
  const { input_tokens } = await client(to).messages.countTokens({ model: to.model, messages: [user(input)] });
  if (message.stop_reason !== "end_turn" || input_tokens !== message.usage.input_tokens + message.usage.cache_read_input_tokens) {
    throw new Error(JSON.stringify({ ...message, input_tokens }));
  }
  return textOf(message);
}

export async function stream(to, input) {
  const pieces = [];
  const helper = client(to).messages.stream(asked(to, [user(input)])).on("text", (delta) => pieces.push(delta));
  const final = await helper.finalText();
  if (final !== pieces.join("")) throw new Error(final);
  return pieces;
}

async function answered(to, input, first) {
  const call = first.content.find((block) => block.type === "tool_use");
  if (first.stop_reason !== "tool_use" || call.input.city !== "Paris") throw new Error(JSON.stringify(first));
  const result = { type: "tool_result", tool_use_id: call.id, content: to.report };
  const messages = [user(input), { role: "assistant", content: first.content }, user([result])];
  return textOf(await create(to, messages, { tools: [weather] }));
}

export const tool_loop = async (to, input) => answered(to, input, await create(to, [user(input)], { tools: [weather] }));

export async function streamed_tool_loop(to, input) {
  return answered(to, input, await client(to).messages.stream(asked(to, [user(input)], { tools: [weather] })).finalMessage());
}

export async function structured(to, input) {
  const output_config = { format: zodOutputFormat(City) };
  return (await client(to).messages.parse(asked(to, [user(input)], { output_config }))).parsed_output;
}

export async function history(to, name, next) {
  const first = await create(to, [user(name)]);
  const second = await create(to, [user(name), { role: "assistant", content: first.content }, user(next)]);
  return [textOf(first), textOf(second)];
}

export async function reasoning(to, input) {
  const thinking = { type: "adaptive" };
  const first = await client(to).messages.stream(asked(to, [user(input)], { thinking })).finalMessage();
  if (!first.content[0].signature) throw new Error(JSON.stringify(first));
  await create(to, [user(input), { role: "assistant", content: first.content }, user(input)], { thinking });
  return [first.content[0].thinking.trim(), textOf(first)];
}

export const error = (to) => create(to, [user("Hi")], { temperature: 9 });

export async function models(to) {
  const found = [];
  for await (const model of client(to).models.list({ limit: 1 })) found.push(model.id);
  return found;
}
