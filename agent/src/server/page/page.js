// The page: asks for figures every two seconds, and for the past of what is looked at.
"use strict";

const EVERY = 2000;
const get = (id) => document.getElementById(id);

let now = null, before = null;      // the last two answers
let minutes = 15, sort = { by: "cpu", up: false };
let opened = null;                  // uid of the pod that is looked at
let graphs = new Map();             // by key: {graph, key}
let seen = new Map();               // restarts by pod, kept while the page is open

function choose(key, fallback) { try { return localStorage.getItem(key) ?? fallback; } catch { return fallback; } }
function keep(key, value) { try { localStorage.setItem(key, value); } catch { /* private windows keep nothing */ } }

// ---- figures ----

const when = (text) => Date.parse(text) / 1000;

/** Bytes a second between the last two answers, for what `of` finds in both. */
function rates(of) {
  const a = before && of(before), b = of(now);
  const seconds = a && b ? (b.atMs - a.atMs) / 1000 : 0;
  if (!(seconds > 0)) return null;
  const rate = (key) => b[key] >= a[key] ? (b[key] - a[key]) / seconds : null;
  return { rx: rate("rxBytes"), tx: rate("txBytes"), read: rate("readBytes"), write: rate("writeBytes") };
}

const plus = (a, b) => a == null && b == null ? null : (a ?? 0) + (b ?? 0);
const cores = (used) => used && used.cpuNano != null ? used.cpuNano / 1e9 : null;

/** What the table shows of a pod. */
function row(pod) {
  const find = (answer) => answer.pods.find((p) => p.uid === pod.uid)?.used;
  const flow = pod.used ? rates(find) : null;
  return {
    pod, name: pod.name, state: pod.state, cpu: cores(pod.used), memory: pod.used?.memoryBytes ?? null,
    network: pod.hostNetwork ? null : plus(flow?.rx, flow?.tx), disk: plus(flow?.read, flow?.write),
    restarts: pod.restarts, age: pod.started ? now.seconds - when(pod.started) : null, flow,
  };
}

function tint(state) {
  if (state === "Running") return "good";
  if (state === "Succeeded" || state === "Completed") return "";
  return /^(Pending|Waiting|ContainerCreating|PodInitializing|Terminating)$/.test(state) ? "warn" : "bad";
}

// ---- pieces ----

function meter(share, color) {
  const track = element("span", "meter"), bar = element("i");
  bar.style.width = `${Math.min(100, Math.max(0, share * 100)).toFixed(1)}%`;
  bar.style.setProperty("--tone", `var(--${color})`);
  if (share > 0.9) bar.className = "full";
  track.append(bar);
  return track;
}

function tile(title, value, small, share, color) {
  const made = element("div", "tile"), big = element("b", "", value);
  made.append(element("span", "", title), big);
  if (small) big.append(" ", element("small", "", small));
  if (share != null && isFinite(share)) made.append(meter(share, color));
  return made;
}

function showTiles() {
  const node = now.node, used = node.used, flow = rates((answer) => answer.node.used) ?? {};
  const running = now.pods.filter((p) => p.state === "Running").length;
  const all = [
    tile("CPU", words.cores(cores(used)), `of ${node.cores} cores`, cores(used) / node.cores, "cpu"),
    tile("Memory", words.bytes(used.memoryBytes), `of ${words.bytes(node.memoryBytes)}`, used.memoryBytes / node.memoryBytes, "memory"),
  ];
  const disk = (title, d) => d && all.push(tile(title, words.bytes(d.usedBytes), `of ${words.bytes(d.capacityBytes)}`, d.usedBytes / d.capacityBytes, "in"));
  disk("Disk", node.disk);
  disk("Images", node.images);
  all.push(tile("Network", words.rate(plus(flow.rx, flow.tx)), "in and out"));
  all.push(tile("Pods", `${running}`, `of ${now.pods.length} running`));
  get("tiles").replaceChildren(...all);
}

const COLUMNS = [
  ["name", "Pod"], ["state", "State"], ["cpu", "CPU"], ["memory", "Memory"], ["network", "Network"],
  ["disk", "Disk"], ["restarts", "Restarts"], ["age", "Age"],
];

function heads() {
  get("heads").replaceChildren(...COLUMNS.map(([key, title]) => {
    const head = element("th"), button = element("button", "", title);
    if (sort.by === key) head.setAttribute("aria-sort", sort.up ? "ascending" : "descending");
    button.addEventListener("click", () => {
      sort = { by: key, up: sort.by === key ? !sort.up : key === "name" || key === "state" };
      heads();
      showPods();
    });
    head.append(button);
    return head;
  }));
}

/** An amount, what it may be at most, and a bar of the share. */
function amount(label, text, bound, share, color) {
  const cell = element("td", "amount", text);
  cell.dataset.label = label;
  if (bound) cell.append(" ", element("small", "", `of ${bound}`));
  if (share != null && isFinite(share)) cell.append(meter(share, color));
  return cell;
}

function plain(label, text, className) {
  const cell = element("td", className, text);
  cell.dataset.label = label;
  return cell;
}

function usageCells(used, limits, node) {
  const cpu = cores(used), most = limits.cpuMilli ? limits.cpuMilli / 1000 : null, room = limits.memoryBytes;
  return [
    amount("CPU", words.cores(cpu), most && words.cores(most), cpu == null ? null : cpu / (most ?? node.cores), "cpu"),
    amount("Memory", words.bytes(used?.memoryBytes), room && words.bytes(room),
      used ? used.memoryBytes / (room ?? node.memoryBytes) : null, "memory"),
  ];
}

function podRow(r) {
  const line = element("tr"), first = element("td"), state = element("td");
  first.append(element("span", "name", r.pod.name), element("small", "", r.pod.namespace));
  state.dataset.label = "State";
  state.append(element("span", `state ${tint(r.state)}`, r.state));
  line.append(first, state, ...usageCells(r.pod.used, r.pod.limits, now.node),
    plain("Network", r.pod.hostNetwork ? "the node's" : words.rate(r.network)), plain("Disk", words.rate(r.disk)),
    plain("Restarts", String(r.restarts), r.restarts > 0 ? "often" : ""), plain("Age", r.age == null ? "–" : words.age(r.age)));
  line.tabIndex = 0;
  const open = () => { location.hash = `pod/${r.pod.uid}`; };
  line.addEventListener("click", open);
  line.addEventListener("keydown", (event) => { if (event.key === "Enter") open(); });
  line.dataset.uid = r.pod.uid;
  return line;
}

function showPods() {
  const wanted = get("filter").value.trim().toLowerCase();
  const rows = now.pods.map(row).filter((r) => `${r.pod.namespace}/${r.name} ${r.state}`.toLowerCase().includes(wanted));
  const order = sort.up ? 1 : -1;
  rows.sort((a, b) => {
    const [x, y] = [a[sort.by] ?? -1, b[sort.by] ?? -1];
    return (x < y ? -order : x > y ? order : 0) || (a.name < b.name ? -1 : 1);
  });
  const focused = document.activeElement?.dataset?.uid;
  get("rows").replaceChildren(...rows.map(podRow));
  if (focused) document.querySelector(`tr[data-uid="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  get("count").textContent = rows.length === now.pods.length ? String(rows.length) : `${rows.length} of ${now.pods.length}`;
  get("nothing").hidden = rows.length > 0;
  get("nothing").textContent = now.pods.length ? "No pod fits the filter." : "No pod on this node yet.";
}

// ---- graphs ----

function graph(place, key, title, kind, lines) {
  let known = graphs.get(key);
  if (!known) {
    known = new Graph(title, kind, lines);
    known.root.dataset.graph = key;
    graphs.set(key, known);
    place.append(known.root);
  }
  return known;
}

function clearGraphs() {
  for (const known of graphs.values()) known.end();
  graphs.clear();
}

/** The four graphs of one thing. */
function four(place, key, past, network, bounds, marks, wants) {
  // A past that is shorter than the stretch fills the graph, down to a minute.
  const to = now.seconds, first = Math.min(past.at[0] ?? to, network?.at[0] ?? to);
  const from = Math.max(to - minutes * 60, Math.min(first, to - 60));
  const draw = (what, title, kind, lines, series, limits) =>
    graph(place, `${key} ${what}`, title, kind, lines)
      .show([series.at, ...lines.map((l) => series[l.key])], limits, marks, from, to, wants.otherwise ?? "Waiting for a second look …");
  draw("cpu", "CPU", "cores", [{ label: "", tone: "cpu", key: "cpu" }], past, bounds.cpu);
  draw("memory", "Memory", "bytes", [{ label: "", tone: "memory", key: "memory" }], past, bounds.memory);
  if (network) {
    draw("network", "Network", "rate", [{ label: "in", tone: "in", key: "rx" }, { label: "out", tone: "out", key: "tx" }], network, []);
  }
  if (wants.disk) {
    draw("disk", "Disk", "rate", [{ label: "read", tone: "in", key: "read" }, { label: "written", tone: "out", key: "write" }], past, []);
  }
}

/** Limits and requests as lines. */
function boundsOf(requests, limits) {
  const two = (request, limit, scale) => [
    { label: "limit", tone: "bad", value: limit == null ? 0 : limit / scale },
    { label: "request", tone: "good", value: request == null || request === limit ? 0 : request / scale, left: true },
  ];
  return { cpu: two(requests.cpuMilli, limits.cpuMilli, 1000), memory: two(requests.memoryBytes, limits.memoryBytes, 1) };
}

/** Starts after the first, as the node has seen them, and bad ends, as far as the API tells or the page has seen them. */
function marksOf(pod, starts) {
  const known = seen.get(pod.uid) ?? new Map();
  seen.set(pod.uid, known);
  for (const c of pod.containers) {
    const own = starts.filter((s) => s.name === c.name);
    // The newest of them are the starts after the first.
    for (const s of c.restarts > 0 ? own.slice(-c.restarts) : []) known.set(`${c.name} ${s.at}`, { at: when(s.at), name: c.name, bad: false });
    if (c.ended) known.set(`${c.name} ended ${c.ended.at}`, { at: when(c.ended.at), name: c.name, bad: c.ended.code !== 0 });
  }
  return [...known.values()];
}

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
  return answer.json();
}

async function showNode() {
  const past = await ask("windlass/history/node");
  if (opened) return;
  const node = now.node;
  const capacity = (value) => [{ label: "capacity", tone: "faint", value }];
  four(get("graphs"), "node", past, past, { cpu: capacity(node.cores), memory: capacity(node.memoryBytes) }, [], { disk: true });
}

async function showPod(uid) {
  const pod = now.pods.find((p) => p.uid === uid);
  if (!pod) { location.hash = ""; return; }
  get("pod-name").textContent = pod.name;
  get("pod-state").textContent = pod.state;
  get("pod-state").className = `state ${tint(pod.state)}`;
  const facts = [`namespace ${pod.namespace}`];
  if (pod.started) facts.push(`started ${words.age(now.seconds - when(pod.started))} ago`);
  facts.push(pod.restarts === 1 ? "1 restart" : `${pod.restarts} restarts`);
  if (pod.hostNetwork) facts.push("uses the node's network");
  get("pod-facts").textContent = facts.join(" · ");
  const past = await ask(`windlass/history/pods/${encodeURIComponent(uid)}`);
  if (opened !== uid) return;
  const marks = marksOf(pod, past.starts);
  // A pod without a group of its own has the past of its only container.
  const whole = past.pod.at.length || pod.containers.length !== 1 ? past.pod : past.containers[pod.containers[0].name] ?? past.pod;
  four(get("graphs"), uid, whole, past.network, boundsOf(pod.requests, pod.limits), marks, { disk: true });
  for (const c of pod.containers) showContainer(pod, c, past.containers[c.name], marks);
}

function showContainer(pod, container, past, marks) {
  const key = `${pod.uid}/${container.name}`;
  let place = [...get("containers").children].find((child) => child.dataset.key === key);
  if (!place) {
    place = element("div");
    place.dataset.key = key;
    place.append(element("h3"), element("div", "graphs"));
    get("containers").append(place);
  }
  const facts = [];
  if (container.started) facts.push(`runs for ${words.age(now.seconds - when(container.started))}`);
  if (container.restarts) facts.push(container.restarts === 1 ? "started again once" : `started again ${container.restarts} times`);
  if (container.ended) facts.push(`last end: ${container.ended.reason || "ended"}, code ${container.ended.code}, ${words.age(now.seconds - when(container.ended.at))} ago`);
  place.firstChild.replaceChildren(element("span", "", container.name), element("span", `state ${tint(container.state)}`, container.state), element("small", "", facts.join(" · ")));
  const own = marks.filter((m) => m.name === container.name);
  const empty = { at: [], cpu: [], memory: [], rx: [], tx: [], read: [], write: [] };
  four(place.lastChild, key, past ?? empty, null, boundsOf(container.requests, container.limits), own, { disk: false, otherwise: container.used ? undefined : "Does not run" });
}

// ---- the round ----

let asking = false;

async function round() {
  if (asking || document.hidden) return;
  asking = true;
  try {
    const answer = await ask("windlass/usage");
    answer.seconds = when(answer.at);
    if (!now || answer.node.used.atMs > now.node.used.atMs) before = now;
    now = answer;
    get("node").textContent = now.node.name;
    get("system").textContent = `${now.node.system} · up ${words.age(now.seconds - when(now.node.booted))}`;
    document.title = `${now.node.name} · Windlass`;
    showTiles();
    showPods();
    await (opened ? showPod(opened) : showNode());
    get("link").className = "link live";
    get("link").textContent = "live";
    document.body.dataset.rounds = String(Number(document.body.dataset.rounds ?? 0) + 1);
  } catch (error) {
    get("link").className = "link lost";
    get("link").textContent = "no answer";
    get("link").title = String(error);
  } finally {
    asking = false;
  }
}

function turn() {
  const match = /^#pod\/(.+)$/.exec(location.hash);
  const next = match ? decodeURIComponent(match[1]) : null;
  if (next !== opened) clearGraphs();
  opened = next;
  get("detail").hidden = get("containers").hidden = !opened;
  get("tiles").hidden = get("pods").hidden = Boolean(opened);
  get("containers").replaceChildren();
  if (now) { asking = false; round(); }
  scrollTo(0, 0);
}

const dark = matchMedia("(prefers-color-scheme: dark)");
let theme = choose("theme", "system");

function paint() {
  document.documentElement.dataset.theme = theme === "system" ? (dark.matches ? "dark" : "light") : theme;
  get("theme").title = `Colours: ${theme === "system" ? "as the system has them" : theme}`;
  for (const known of graphs.values()) known.repaint();
}

function range(chosen) {
  minutes = chosen;
  keep("minutes", String(chosen));
  for (const button of get("ranges").children) button.setAttribute("aria-pressed", String(Number(button.dataset.minutes) === chosen));
  if (now) { asking = false; round(); }
}

get("theme").addEventListener("click", () => {
  const order = ["system", "light", "dark"];
  theme = order[(order.indexOf(theme) + 1) % order.length];
  keep("theme", theme);
  paint();
});
get("ranges").addEventListener("click", (event) => {
  const chosen = Number(event.target.dataset?.minutes);
  if (chosen) range(chosen);
});
get("filter").addEventListener("input", () => now && showPods());
dark.addEventListener("change", paint);
addEventListener("hashchange", turn);
document.addEventListener("visibilitychange", round);

const stored = Number(choose("minutes", "15"));
heads();
paint();
range([2, 15, 60].includes(stored) ? stored : 15);
turn();
round();
setInterval(round, EVERY);
