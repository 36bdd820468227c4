// @openai/agents: whole runs, over HTTP and over its WebSocket transport.
import {
  Agent, MemorySession, OpenAIResponsesModel, OpenAIResponsesWSModel, Runner, tool, toolNamespace, toolSearchTool,
} from "@openai/agents";
import OpenAI from "openai";
import WebSocket from "ws";
import { z } from "zod";

const City = z.object({ name: z.string(), country: z.string(), population: z.number().int(), capital: z.boolean() });
// Node has one of its own from version 22 on.
globalThis.WebSocket ??= WebSocket;

const runner = new Runner({ tracingDisabled: true });

function client(to) {
  return new OpenAI({ baseURL: to.url, apiKey: "unused", maxRetries: 0 });
}

async function withAgent(to, more, use) {
  const model = new (to.way === "websocket" ? OpenAIResponsesWSModel : OpenAIResponsesModel)(client(to), to.model);
  try {
    return await use(new Agent({ name: "Assistant", model, ...more }));
  } finally {
    await model.close?.();
  }
}

const weather = (to) =>
  tool({
    name: "get_weather", description: "Current weather of a city.", parameters: z.object({ city: z.string() }), execute: () => to.report,
  });

const kinds = (result) => result.newItems.map((item) => item.type);
const LOOP = ["tool_call_item", "tool_call_output_item", "message_output_item"];

function looped(result) {
  if (kinds(result).join() !== LOOP.join()) throw new Error(kinds(result).join());
  return result.finalOutput;
}

export const text = (to, input) =>
  withAgent(to, {}, async (agent) => (await runner.run(agent, input)).finalOutput);

export const stream = (to, input) =>
  withAgent(to, {}, async (agent) => {
    const result = await runner.run(agent, input, { stream: true });
    const pieces = [];
    for await (const piece of result.toTextStream()) pieces.push(piece);
    await result.completed;
    return pieces;
  });

export const tool_loop = (to, input) =>
  withAgent(to, { tools: [weather(to)] }, async (agent) => looped(await runner.run(agent, input)));

export const streamed_tool_loop = (to, input) =>
  withAgent(to, { tools: [weather(to)] }, async (agent) => {
    const result = await runner.run(agent, input, { stream: true });
    for await (const _ of result);
    return looped(result);
  });

export const structured = (to, input) =>
  withAgent(to, { outputType: City }, async (agent) => (await runner.run(agent, input)).finalOutput);

export const history = (to, name, asked) =>
  withAgent(to, {}, async (agent) => {
    const first = await runner.run(agent, name);
    return [first.finalOutput, (await runner.run(agent, asked, { previousResponseId: first.lastResponseId })).finalOutput];
  });

export const reasoning = (to, input) =>
  withAgent(to, { modelSettings: { reasoning: { effort: "medium", summary: "auto" } } }, async (agent) => {
    const result = await runner.run(agent, input);
    const thought = result.newItems.filter((item) => item.type === "reasoning_item");
    const texts = thought.flatMap((item) => item.rawItem.content.map((part) => part.text));
    return [texts.join("").trim(), result.finalOutput];
  });

export const error = (to) =>
  withAgent(to, { modelSettings: { temperature: 9 } }, (agent) => runner.run(agent, "Hi"));

// History by a conversation, and by a session.
export const remember = (to, name, asked) =>
  withAgent(to, {}, async (agent) => {
    const { id } = await client(to).conversations.create();
    const texts = [];
    for (const options of [{ conversationId: id }, { session: new MemorySession() }]) {
      await runner.run(agent, name, options);
      texts.push((await runner.run(agent, asked, options)).finalOutput);
    }
    return texts;
  });

export const handOff = (to, input) =>
  withAgent(to, {}, async (agent) => {
    const spanish = new Agent({ name: "Spanish", model: agent.model });
    const triage = new Agent({ name: "Triage", model: agent.model, handoffs: [spanish] });
    const result = await runner.run(triage, input);
    return { text: result.finalOutput, last: result.lastAgent.name };
  });

export const callInNamespace = (to, input) =>
  withAgent(to, { tools: toolNamespace({ name: "crm", description: "Customers.", tools: [weather(to)] }) }, async (agent) => {
    const result = await runner.run(agent, input);
    const call = result.newItems.find((item) => item.type === "tool_call_item").rawItem;
    return { text: result.finalOutput, name: call.name, namespace: call.namespace };
  });

export const searchTools = (to, input) => {
  const deferred = tool({
    name: "get_weather", description: "Current weather of a city.", parameters: z.object({ city: z.string() }), deferLoading: true,
    execute: () => to.report,
  });
  const search = toolSearchTool({
    execution: "client",
    description: "Finds tools.",
    parameters: { type: "object", properties: { query: { type: "string" } }, required: ["query"], additionalProperties: false },
    execute: () => [deferred],
  });
  return withAgent(to, { tools: [deferred, search] }, async (agent) => {
    const result = await runner.run(agent, input);
    return { text: result.finalOutput, kinds: kinds(result) };
  });
};
