// npm install pg; then: node deposit.mjs JOB TOKEN ACCOUNT CENTS, with DATABASE_URL set.
import pg from "pg";

export async function deposit(client, { job, token, account, cents }) {
  await client.query("begin");
  try {
    await client.query("update balance set cents = cents + $1 where account = $2", [cents, account]);
    await client.query("select leasemill.commit($1, $2, $3)", [job, token, JSON.stringify({ paid: cents })]);
    await client.query("commit"); // the lease is checked here
    return true;
  } catch (error) {
    await client.query("rollback");
    if (error.code === "LM001") return false; // another run has the job now: nothing has happened
    throw error;
  }
}

const [job, token, account, cents] = process.argv.slice(2);
const client = new pg.Client({ connectionString: process.env.DATABASE_URL });
await client.connect();
try {
  const done = await deposit(client, { job, token, account, cents: Number(cents) });
  console.log(done ? "committed" : "the lease is lost");
} finally {
  await client.end();
}
