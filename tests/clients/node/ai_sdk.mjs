// The AI SDK with its OpenAI provider, whose default API is Responses, and with its two providers of chat completions.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, isStepCount, Output, streamText, tool } from "ai";
import { z } from "zod";

const City = z.object({ name: z.string(), country: z.string(), population: z.number().int(), capital: z.boolean() });

// The provider shows reasoning only for names that it knows as reasoning models, unless it is told so.
const reasoning = { openai: { forceReasoning: true, reasoningEffort: "medium", reasoningSummary: "auto" } };

function model(to) {
  const there = { baseURL: to.url, apiKey: "unused" };
  if (to.provider === "compatible") {
    const options = { ...there, name: "longhaul", includeUsage: true, supportsStructuredOutputs: true };
    return createOpenAICompatible(options).chatModel(to.model);
  }
  return to.provider === "chat" ? createOpenAI(there).chat(to.model) : createOpenAI(there)(to.model);
}

function weather(report) {
  const inputSchema = z.object({ city: z.string() });
  return { get_weather: tool({ description: "Current weather of a city.", inputSchema, execute: async () => report }) };
}

export async function generate(to, { prompt }) {
  const { text, usage, finishReason } = await generateText({ model: model(to), prompt, maxRetries: 0 });
  return { text, usage, finishReason };
}

export async function stream(to, { prompt }) {
  const result = streamText({ model: model(to), prompt, maxRetries: 0 });
  const kinds = [];
  let text = "";
  for await (const part of result.fullStream) {
    if (kinds.at(-1) !== part.type) kinds.push(part.type);
    if (part.type === "text-delta") text += part.text;
  }
  return { text, kinds };
}

export async function callTool(to, { prompt, report, store }) {
  const options = { openai: { store } };
  const asked = { model: model(to), prompt, tools: weather(report), stopWhen: isStepCount(3), providerOptions: options, maxRetries: 0 };
  const { text, steps } = await generateText(asked);
  return { text, calls: steps.flatMap((step) => step.toolCalls.map(({ toolName, input }) => ({ toolName, input }))) };
}

export async function streamToolCall(to, { prompt, report }) {
  const result = streamText({ model: model(to), prompt, tools: weather(report), stopWhen: isStepCount(3), maxRetries: 0 });
  const kinds = [];
  for await (const part of result.fullStream) kinds.push(part.type);
  return { text: await result.text, kinds };
}

export async function structured(to, { prompt }) {
  const { output } = await generateText({ model: model(to), prompt, output: Output.object({ schema: City }), maxRetries: 0 });
  return output;
}

export async function reason(to, { prompt }) {
  const asked = { model: model(to), prompt, providerOptions: reasoning, maxRetries: 0 };
  const { text, reasoningText } = await generateText(asked);
  const streamed = streamText(asked);
  let deltas = "";
  for await (const part of streamed.fullStream) if (part.type === "reasoning-delta") deltas += part.text;
  return { text, reasoningText, deltas };
}

export async function reasonThenCallTool(to, { prompt, report, store }) {
  const options = { openai: { ...reasoning.openai, store } };
  const asked = { model: model(to), prompt, tools: weather(report), stopWhen: isStepCount(3), providerOptions: options, maxRetries: 0 };
  const { text, steps } = await generateText(asked);
  return { text, reasoned: steps.map((step) => step.reasoningText) };
}

export async function talk(to, { name, asked }) {
  const first = await generateText({ model: model(to), prompt: name, maxRetries: 0 });
  const messages = [{ role: "user", content: name }, ...first.responseMessages, { role: "user", content: asked }];
  const second = await generateText({ model: model(to), messages, maxRetries: 0 });
  const previousResponseId = first.providerMetadata.openai.responseId;
  const third = await generateText({ model: model(to), prompt: asked, providerOptions: { openai: { previousResponseId } }, maxRetries: 0 });
  return [first, second, third].map(({ text, usage }) => ({ text, input: usage.inputTokens }));
}

export async function refused(to) {
  await generateText({ model: model(to), prompt: "Hi", temperature: 9, maxRetries: 0 });
}

// The functions above with another provider.
export async function by(to, { provider, name, args }) {
  const functions = { generate, stream, callTool, streamToolCall, structured, refused };
  return functions[name]({ ...to, provider }, args);
}

export async function compatibleReason(to, { prompt }) {
  const asked = { model: model({ ...to, provider: "compatible" }), reasoning: "medium", maxRetries: 0 };
  const first = await generateText({ ...asked, prompt });
  const messages = [{ role: "user", content: prompt }, ...first.responseMessages, { role: "user", content: prompt }];
  const streamed = streamText({ ...asked, messages });
  let deltas = "";
  for await (const part of streamed.fullStream) if (part.type === "reasoning-delta") deltas += part.text;
  return { text: first.text, reasoningText: first.reasoningText, deltas, again: await streamed.text };
}
