// LangChain's ChatOpenAI with the Responses API, and with chat completions, which are its default.
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";

const City = z.object({ name: z.string(), country: z.string(), population: z.number().int(), capital: z.boolean() });

function chat(to, more = {}) {
  return new ChatOpenAI({ model: to.model, apiKey: "unused", configuration: { baseURL: to.url }, useResponsesApi: to.responses ?? true, maxRetries: 0, ...more });
}

export async function invoke(to, { input }) {
  const answer = await chat(to).invoke(input);
  return { text: answer.text, usage: answer.usage_metadata };
}

export async function stream(to, { input }) {
  let text = "";
  for await (const chunk of await chat(to).stream(input)) text += chunk.text;
  return { text };
}

export async function callTool(to, { input, report }) {
  const schema = z.object({ city: z.string() });
  const weather = tool(() => report, { name: "get_weather", description: "Current weather of a city.", schema });
  const bound = chat(to).bindTools([weather]);
  const first = await bound.invoke(input);
  const [call] = first.tool_calls;
  const said = [{ role: "user", content: input }, first, { role: "tool", content: report, tool_call_id: call.id }];
  return { call, text: (await bound.invoke(said)).text };
}

export async function structured(to, { input }) {
  return chat(to).withStructuredOutput(City, { method: "jsonSchema", strict: true }).invoke(input);
}

export async function reason(to, { input }) {
  // The option `reasoning` is sent only to names that it knows as reasoning models.
  const thinking = chat(to, { modelKwargs: { reasoning: { effort: "medium", summary: "auto" } } });
  const answer = await thinking.invoke(input);
  let streamed = "";
  for await (const chunk of await thinking.stream(input)) {
    for (const block of chunk.contentBlocks) if (block.type === "reasoning") streamed += block.reasoning;
  }
  const thought = answer.contentBlocks.filter((block) => block.type === "reasoning").map((block) => block.reasoning);
  return { text: answer.text, thought: thought.join(""), streamed };
}

export async function completions(to, { name, args }) {
  const functions = { invoke, stream, callTool, structured };
  return functions[name]({ ...to, responses: false }, args);
}
