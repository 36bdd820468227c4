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
  const model = new (to.websocket ? OpenAIResponsesWSModel : OpenAIResponsesModel)(client(to), to.model);
  try {
    return await use(new Agent({ name: "Assistant", model, ...more }));
  } finally {
    await model.close?.();
  }
}

function weather(report) {
  return tool({
    name: "get_weather", description: "Current weather of a city.", parameters: z.object({ city: z.string() }), execute: () => report,
  });
}

const kinds = (result) => result.newItems.map((item) => item.type);

export const run = (to, { input }) =>
  withAgent(to, {}, async (agent) => {
    const result = await runner.run(agent, input);
    return { text: result.finalOutput, tokens: result.rawResponses[0].usage.outputTokens };
  });

export const stream = (to, { input }) =>
  withAgent(to, {}, async (agent) => {
    const result = await runner.run(agent, input, { stream: true });
    let text = "";
    for await (const piece of result.toTextStream()) text += piece;
    await result.completed;
    return { text, final: result.finalOutput };
  });

export const callTool = (to, { input, report, stream }) =>
  withAgent(to, { tools: [weather(report)] }, async (agent) => {
    const result = await runner.run(agent, input, { stream });
    if (stream) for await (const _ of result);
    return { text: result.finalOutput, kinds: kinds(result) };
  });

export const structured = (to, { input }) =>
  withAgent(to, { outputType: City }, async (agent) => (await runner.run(agent, input)).finalOutput);

export const talk = (to, { name, asked }) =>
  withAgent(to, {}, async (agent) => {
    const first = await runner.run(agent, name);
    const continued = await runner.run(agent, asked, { previousResponseId: first.lastResponseId });
    const { id } = await client(to).conversations.create();
    const texts = [first.finalOutput, continued.finalOutput];
    for (const input of [name, asked]) texts.push((await runner.run(agent, input, { conversationId: id })).finalOutput);
    const session = new MemorySession();
    for (const input of [name, asked]) texts.push((await runner.run(agent, input, { session })).finalOutput);
    return texts;
  });

export const handOff = (to, { input }) =>
  withAgent(to, {}, async (agent) => {
    const spanish = new Agent({ name: "Spanish", model: agent.model });
    const triage = new Agent({ name: "Triage", model: agent.model, handoffs: [spanish] });
    const result = await runner.run(triage, input);
    return { text: result.finalOutput, last: result.lastAgent.name, kinds: kinds(result) };
  });

export const reason = (to, { input }) =>
  withAgent(to, { modelSettings: { reasoning: { effort: "medium", summary: "auto" } } }, async (agent) => {
    const result = await runner.run(agent, input);
    const thought = result.newItems.filter((item) => item.type === "reasoning_item");
    return { text: result.finalOutput, summaries: thought.flatMap((item) => item.rawItem.content.map((part) => part.text)) };
  });

export const callInNamespace = (to, { input, report }) =>
  withAgent(to, { tools: toolNamespace({ name: "crm", description: "Customers.", tools: [weather(report)] }) }, async (agent) => {
    const result = await runner.run(agent, input);
    const call = result.newItems.find((item) => item.type === "tool_call_item").rawItem;
    return { text: result.finalOutput, name: call.name, namespace: call.namespace };
  });

export const searchTools = (to, { input, report }) => {
  const deferred = tool({
    name: "get_weather", description: "Current weather of a city.", parameters: z.object({ city: z.string() }), deferLoading: true,
    execute: () => report,
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
