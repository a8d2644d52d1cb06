// What OpenAI's client for Node makes of our answers; started by test_clients as `node talk.mjs URL FOLDER`, prints JSON.
// FOLDER is where the client is installed; the texts are on standard input.
import { createRequire } from "node:module";
import { text } from "node:stream/consumers";

const [url, folder] = process.argv.slice(2);
const { OpenAI } = createRequire(`${folder}/`)("openai");
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "key", maxRetries: 0 });
const { documents } = JSON.parse(await text(process.stdin));

const answer = await client.embeddings.create({ model: "all-minilm-l6-v2", input: documents });
let refused = null;
try {
  await client.embeddings.create({ model: "all-minilm-l6-v2", input: "" });
} catch (error) {
  refused = { name: error.constructor.name, status: error.status, param: error.param };
}
process.stdout.write(JSON.stringify({ embeddings: answer.data.map((item) => item.embedding), refused }));
