// The samples. Columns of numbers are there from the start; texts are unpacked a chunk at a time.

const KEEP_CHARS = 60e6; // of unpacked chunks; the ones that nobody looked at for longest go first

class Samples {
  constructor(index, unscored) {
    // columns, the tables that they number (splits, tasks, statuses, reasons, ...), starts, skipped
    Object.assign(this, index);
    this.size = this.columns.run.length;
    const unsaid = new Set(unscored);
    this.correct = this.statuses.map((status) => status === "correct");
    this.unscored = this.statuses.map((status) => unsaid.has(status));
    this.unpacked = new Map(); // chunk -> a promise of {sources, rows}, the one used last at the end
    this.chars = new Map();
  }

  chunkOf(i) {
    let low = 0;
    let high = this.starts.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.starts[middle] <= i) low = middle;
      else high = middle;
    }
    return low;
  }

  chunk(number) {
    const found = this.unpacked.get(number) ?? this.read(number);
    this.unpacked.delete(number);
    this.unpacked.set(number, found);
    return found;
  }

  async read(number) {
    const text = await unpack(document.getElementById(`chunk-${number}`).textContent);
    performance.mark("unpacked chunk"); // for whoever measures
    this.chars.set(number, text.length);
    let total = 0;
    for (const size of this.chars.values()) total += size;
    for (const old of [...this.unpacked.keys()]) {
      if (total <= KEEP_CHARS) break;
      if (old === number || !this.chars.has(old)) continue;
      total -= this.chars.get(old);
      this.chars.delete(old);
      this.unpacked.delete(old);
    }
    return JSON.parse(text);
  }

  // {completion, verdict, others, source} of sample i.
  async texts(i) {
    const number = this.chunkOf(i);
    return this.textsIn(await this.chunk(number), number, i);
  }

  textsIn(chunk, number, i) {
    const [completion, verdict, others] = chunk.rows[i - this.starts[number]];
    return { completion, verdict, others, source: chunk.sources[this.columns.task[i]] };
  }

  // The samples that were compared with sample i, itself among them, the best first.
  groupOf(i) {
    const { run, split, step, group, task, reward } = this.columns;
    const keys = [run, split, step, group, task];
    const members = [];
    for (let k = 0; k < this.size; k++) if (keys.every((column) => column[k] === column[i])) members.push(k);
    const worth = (k) => reward[k] ?? (this.correct[this.columns.status[k]] ? 1 : -1);
    return members.sort((a, b) => worth(b) - worth(a));
  }

  status(i) {
    return this.statuses[this.columns.status[i]];
  }
}

// Orders of the list: a number for each sample, small ones first. Equal ones stay as they were written,
// newest first.
const ORDERS = {
  "failures first": (s, i) => (s.correct[s.columns.status[i]] ? 2 : s.unscored[s.columns.status[i]] ? 1 : 0),
  "newest first": () => 0,
  "oldest first": (s, i) => i - s.size,
  "highest reward": (s, i) => -(s.columns.reward[i] ?? -Infinity),
  "lowest reward": (s, i) => s.columns.reward[i] ?? Infinity,
  "highest advantage": (s, i) => -(s.columns.advantage[i] ?? -Infinity),
  "lowest advantage": (s, i) => s.columns.advantage[i] ?? Infinity,
  "longest first": (s, i) => -s.columns.tokens[i],
  "most often written": (s, i) => -s.columns.count[i],
  "fastest first": (s, i) => -(s.columns.speedup[i] ?? -Infinity),
};

// All samples in this order; sorted once.
function ordering(samples, order) {
  samples.orderings ??= {};
  return (samples.orderings[order] ??= sorted(samples, ORDERS[order]));
}

function sorted(samples, keyOf) {
  const key = Float64Array.from({ length: samples.size }, (_, i) => keyOf(samples, i));
  const { step } = samples.columns;
  const all = Int32Array.from(key, (_, i) => i);
  return all.sort((a, b) => key[a] - key[b] || step[b] - step[a] || a - b);
}
