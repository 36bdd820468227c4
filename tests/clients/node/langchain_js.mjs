// LangChain's ChatOpenAI with the Responses API, and with chat completions, which are its default.
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";

const City = z.object({ name: z.string(), country: z.string(), population: z.number().int(), capital: z.boolean() });

function chat(to, more = {}) {
  const useResponsesApi = to.way !== "chat";
  return new ChatOpenAI({ model: to.model, apiKey: "unused", configuration: { baseURL: to.url }, useResponsesApi, maxRetries: 0, ...more });
}

export async function text(to, input) {
  const answer = await chat(to).invoke(input);
  const { input_tokens, output_tokens, total_tokens } = answer.usage_metadata;
  if (total_tokens !== input_tokens + output_tokens) throw new Error(JSON.stringify(answer.usage_metadata));
  return answer.text;
}

export async function stream(to, input) {
  const pieces = [];
  for await (const chunk of await chat(to).stream(input)) pieces.push(chunk.text);
  return pieces;
}

export async function tool_loop(to, input) {
  const schema = z.object({ city: z.string() });
  const weather = tool(() => to.report, { name: "get_weather", description: "Current weather of a city.", schema });
  const bound = chat(to).bindTools([weather]);
  const first = await bound.invoke(input);
  const [call] = first.tool_calls;
  const said = [{ role: "user", content: input }, first, { role: "tool", content: to.report, tool_call_id: call.id }];
  return (await bound.invoke(said)).text;
}

export const structured = (to, input) => chat(to).withStructuredOutput(City, { method: "jsonSchema", strict: true }).invoke(input);

export async function history(to, name, asked) {
  const first = await chat(to).invoke(name);
  const said = [{ role: "user", content: name }, first, { role: "user", content: asked }];
  return [first.text, (await chat(to).invoke(said)).text];
}

// The option `reasoning` is sent only to names that it knows as reasoning models.
export async function reasoning(to, input) {
  const thinking = chat(to, { modelKwargs: { reasoning: { effort: "medium", summary: "auto" } } });
  const answer = await thinking.invoke(input);
  const thought = answer.contentBlocks.filter((block) => block.type === "reasoning").map((block) => block.reasoning);
  return [thought.join("").trim(), answer.text];
}

export const error = (to) => chat(to, { temperature: 9 }).invoke("Hi");
