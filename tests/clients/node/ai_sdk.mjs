// The AI SDK with its OpenAI provider, whose default API is Responses, and with its two providers of chat completions.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, isStepCount, Output, streamText, tool } from "ai";
import { z } from "zod";

const City = z.object({ name: z.string(), country: z.string(), population: z.number().int(), capital: z.boolean() });

// The provider shows reasoning only for names that it knows as reasoning models, unless it is told so.
const forced = { forceReasoning: true, reasoningEffort: "medium", reasoningSummary: "auto" };

function model(to) {
  const there = { baseURL: to.url, apiKey: "unused" };
  if (to.way === "compatible") {
    const options = { ...there, name: "longhaul", includeUsage: true, supportsStructuredOutputs: true };
    return createOpenAICompatible(options).chatModel(to.model);
  }
  return to.way === "chat" ? createOpenAI(there).chat(to.model) : createOpenAI(there)(to.model);
}

const asking = (to, more) => ({ model: model(to), maxRetries: 0, ...more });
const thinking = (to) => (to.way === "compatible" ? { reasoning: "medium" } : { providerOptions: { openai: forced } });
const conversation = (input, first, next) => [{ role: "user", content: input }, ...first.responseMessages, { role: "user", content: next }];

function weather(to) {
  const inputSchema = z.object({ city: z.string() });
  const description = "Current weather of a city.";
  return { tools: { get_weather: tool({ description, inputSchema, execute: async () => to.report }) }, stopWhen: isStepCount(3) };
}

export async function text(to, prompt) {
  const { text, usage, finishReason } = await generateText(asking(to, { prompt }));
  if (finishReason !== "stop" || usage.totalTokens !== usage.inputTokens + usage.outputTokens) throw new Error(JSON.stringify(usage));
  return text;
}

export async function stream(to, prompt) {
  const pieces = [];
  for await (const piece of streamText(asking(to, { prompt })).textStream) pieces.push(piece);
  return pieces;
}

export const tool_loop = async (to, prompt) => (await generateText(asking(to, { prompt, ...weather(to) }))).text;

export async function streamed_tool_loop(to, prompt) {
  const result = streamText(asking(to, { prompt, ...weather(to) }));
  const kinds = [];
  for await (const part of result.fullStream) kinds.push(part.type);
  for (const kind of ["tool-input-start", "tool-input-delta", "tool-call", "tool-result"]) {
    if (!kinds.includes(kind)) throw new Error(kinds.join());
  }
  return result.text;
}

export const structured = async (to, prompt) => (await generateText(asking(to, { prompt, output: Output.object({ schema: City }) }))).output;

export async function history(to, name, asked) {
  const first = await generateText(asking(to, { prompt: name }));
  return [first.text, (await generateText(asking(to, { messages: conversation(name, first, asked) }))).text];
}

// As it streams, and whole; the reasoning goes back with the message.
export async function reasoning(to, prompt) {
  const first = await generateText(asking(to, { prompt, ...thinking(to) }));
  const streamed = streamText(asking(to, { messages: conversation(prompt, first, prompt), ...thinking(to) }));
  let thought = "";
  for await (const part of streamed.fullStream) if (part.type === "reasoning-delta") thought += part.text;
  if (thought.trim() !== first.reasoningText.trim()) throw new Error(`${thought} is not ${first.reasoningText}`);
  return [thought.trim(), await streamed.text];
}

export const error = (to) => generateText(asking(to, { prompt: "Hi", temperature: 9 }));

export async function historyById(to, name, asked) {
  const { providerMetadata } = await generateText(asking(to, { prompt: name }));
  const { responseId: previousResponseId } = providerMetadata.openai;
  return (await generateText(asking(to, { prompt: asked, providerOptions: { openai: { previousResponseId } } }))).text;
}

export async function reasonThenCallTool(to, prompt, store) {
  const providerOptions = { openai: { ...forced, store } };
  const { text, steps } = await generateText(asking(to, { prompt, ...weather(to), providerOptions }));
  return { text, reasoned: steps[0].reasoningText };
}
