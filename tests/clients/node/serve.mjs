// Runs the functions of one module for Python: `node serve.mjs MODULE`.
// Each line of stdin is {"function", "to", "args": {"to", "asked"}}; each line of stdout is {"result"} or {"error"}.
import { createInterface } from "node:readline";

const cases = await import(`./${process.argv[2]}`);

for await (const line of createInterface({ input: process.stdin })) {
  const { function: name, to, args } = JSON.parse(line);
  let answer;
  try {
    answer = { result: await cases[name]({ ...to, ...args.to }, ...args.asked) };
  } catch (error) {
    answer = { error: { name: error.name, status: error.status ?? error.statusCode ?? null, message: error.message, stack: error.stack } };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
