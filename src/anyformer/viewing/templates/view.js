"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const began = performance.now();
  const data = JSON.parse($("data").textContent);
  const COLOURS = ["#2767c4", "#c2570c", "#1c7c47", "#a3348f", "#8a6d00", "#0f8b8d", "#b3261e", "#6b4fc8"];
  // Beyond the palette: golden-angle hues, so that any number of heads have different colours.
  const hex = (hue, light) => "#" + [0, 8, 4].map((n) => {
    const k = (n + hue / 30) % 12, reach = 0.6 * Math.min(light, 1 - light);
    return Math.round(255 * (light - reach * Math.max(-1, Math.min(k - 3, 9 - k, 1)))).toString(16).padStart(2, "0");
  }).join("");
  const colour = (head) => COLOURS[head] ?? hex((head * 137.508) % 360, head % 2 ? 0.38 : 0.52);
  const ROLES = " Words below a map: where most of the weight goes, and how much of it.";
  const STACKS = { encoder: "encoder: input to input", decoder: "decoder: output to output", cross: "cross: output to input" };
  const ROW = 22, FAINT = 0.01;
  const state = { look: 0, sheet: 0, heads: new Set([0]), token: Infinity, other: null, pinned: false };

  const unpack = (text) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const view = new DataView(bytes.buffer), values = new Float32Array(bytes.length / 4);
    for (let i = 0; i < values.length; i++) values[i] = view.getFloat32(4 * i, true);
    return values;
  };
  const memo = (sheet, key) => (typeof sheet[key] === "string" ? (sheet[key] = unpack(sheet[key])) : sheet[key]);
  const look = () => data.looks[state.look];
  const sheet = () => look().sheets[state.sheet];
  const visible = (text) => text.replace(/^ +$/, "\u2423").replace(/\n/g, "\u21b5").replace(/\t/g, "\u21e5").replace(/\r/g, "\u240d") || "\u00b7";
  const columns = () => {
    const [, , m] = sheet().shape;
    return sheet().slots ? Array.from({ length: m }, (_, j) => String(j + 1)) : look().columns;
  };
  const chosen = () => [...state.heads].sort((a, b) => a - b);
  const weight = (head, i, j) => {
    const [, n, m] = sheet().shape;
    return memo(sheet(), "weights")[(head * n + i) * m + j];
  };
  const mean = (i, j) => chosen().reduce((sum, head) => sum + weight(head, i, j), 0) / state.heads.size;
  const row = (i) => Array.from({ length: sheet().shape[2] }, (_, j) => mean(i, j));
  const node = (tag, parent, text, className) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    if (parent) parent.append(made);
    return made;
  };
  const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const canvas = (element, width, height) => {
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    element.width = Math.round(width * ratio);
    element.height = Math.round(height * ratio);
    element.style.width = `${width}px`;
    element.style.height = `${height}px`;
    const pen = element.getContext("2d");
    pen.scale(ratio, ratio);
    return pen;
  };
  const most = (values) => values.reduce((a, b) => Math.max(a, b), 0) || 1;
  const scale = () => (sheet().measure === "attention" ? 1 : most(memo(sheet(), "weights")));
  const digits = (value) => value.toFixed(4);
  const headName = () => {
    const shown = chosen();
    if (sheet().shape[0] === 1) return "";
    return shown.length === 1 ? `, head ${shown[0] + 1}` : `, mean of ${shown.length} heads`;
  };
  const layerName = (label) => (label === "all" ? "all layers together" : `layer ${label}`);
  const place = () => `${look().name}, ${layerName(sheet().label)}${headName()}`;

  function drawChoices() {
    $("look-choice").hidden = data.looks.length < 2;
    $("look").value = state.look;
    const layer = $("layer");
    layer.replaceChildren();
    look().sheets.forEach((it, index) => {
      const option = node("option", layer, it.measure === "influence" ? `${it.label} (influence)` : it.label);
      option.value = index;
      option.selected = index === state.sheet;
    });
    const heads = $("heads"), count = sheet().shape[0];
    heads.replaceChildren();
    if (count === 1) return;
    for (let head = 0; head < count; head++) {
      const button = node("button", heads, head + 1);
      button.style.borderBottomColor = colour(head);
      button.title = `head ${head + 1}: click to switch it on or off, with Shift for it alone`;
      button.setAttribute("aria-label", `head ${head + 1}`);
      button.dataset.focus = `head ${head + 1}`;
      button.setAttribute("aria-pressed", state.heads.has(head));
      button.onclick = (event) => {
        const next = event.shiftKey ? new Set() : new Set(state.heads);
        if (!next.delete(head)) next.add(head);
        choose({ heads: next.size ? next : new Set([head]) });
      };
    }
    const all = node("button", heads, "all");
    all.dataset.focus = "all heads";
    all.setAttribute("aria-pressed", state.heads.size === count);
    all.onclick = () => choose({ heads: new Set(Array.from({ length: count }, (_, head) => head)) });
  }

  function drawTokens() {
    const left = $("left"), right = $("right");
    left.replaceChildren();
    right.replaceChildren();
    look().rows.slice(0, sheet().shape[1]).forEach((text, index) => {
      const button = node("button", left, visible(text), "token");
      button.dir = "auto";
      button.title = text;
      button.dataset.focus = `token ${index}`;
      button.onmouseenter = () => state.pinned || hover(index);
      button.onfocus = () => state.pinned || hover(index);
      button.onclick = () => choose({ token: index, pinned: !(state.pinned && state.token === index) });
    });
    columns().slice(0, sheet().shape[2]).forEach((text) => {
      const label = node("span", right, visible(text), "token");
      label.dir = "auto";
      label.title = text;
    });
    $("lines").onmouseleave = () => state.pinned || drawWires(null);
  }

  function hover(index) {
    state.token = index;
    state.other = null;
    drawWires(index);
    drawRow();
  }

  function drawWires(only) {
    const [, n, m] = sheet().shape, area = $("lines"), width = Math.floor(area.clientWidth * 0.32);
    const pen = canvas($("wires"), Math.max(width, 10), Math.max(n, m) * ROW), top = scale();
    pen.lineCap = "round";
    const rows = only === null ? Array.from({ length: n }, (_, i) => i) : [only];
    for (const head of chosen()) {
      pen.strokeStyle = colour(head);
      for (const i of rows)
        for (let j = 0; j < m; j++) {
          const share = Math.min(1, weight(head, i, j) / top);
          if (share < FAINT) continue;
          pen.globalAlpha = only === null ? 0.85 * share : Math.min(1, share + 0.03);
          pen.lineWidth = only === null ? 1.4 : 0.8 + 3 * share;
          pen.beginPath();
          pen.moveTo(2, (i + 0.5) * ROW);
          pen.bezierCurveTo(width / 2, (i + 0.5) * ROW, width / 2, (j + 0.5) * ROW, width - 2, (j + 0.5) * ROW);
          pen.stroke();
        }
    }
    const mark = rgb(chosen().length === 1 ? colour(chosen()[0]) : "#2767c4"), shares = only === null ? null : row(only);
    [...$("left").children].forEach((it, i) => it.setAttribute("aria-pressed", i === only));
    [...$("right").children].forEach((it, j) => {
      it.style.backgroundColor = shares ? `rgba(${mark},${Math.min(0.75, shares[j] / top)})` : "";
    });
  }

  function drawRow() {
    const names = columns(), shares = row(state.token), list = $("row"), top = most(shares);
    const word = visible(look().rows[state.token] ?? "");
    const verb = sheet().measure === "influence" ? "depends on" : look().name === "cross" ? "is written looking at" : "looks at";
    $("chosen-title").textContent = `${word.trim() || word} ${verb}`;
    list.replaceChildren();
    const best = shares.map((value, j) => [value, j]).sort((a, b) => b[0] - a[0]).slice(0, 10)
      .filter(([value], index) => index === 0 || value >= 5e-5);
    for (const [value, j] of best) {
      const item = node("li", list), meter = (node("bdi", item, visible(names[j] ?? "")), node("div", item, "", "meter"));
      node("i", meter).style.width = `${(100 * value) / top}%`;
      const number = node("output", item, digits(value));
      number.dataset.column = j;
      number.dataset.value = value;
    }
    drawComparison(names);
    const at = state.other ?? best[0][1];
    const now = $("now");
    now.textContent = `${place()}: ${word} \u2192 ${visible(names[at] ?? "")} ${digits(shares[at])}`;
    Object.assign(now.dataset, { value: shares[at], row: state.token, column: at, look: look().name, layer: sheet().label });
  }

  function drawComparison(names) {
    const table = $("compare"), heads = chosen();
    table.replaceChildren();
    $("comparison").hidden = heads.length < 2;
    if (heads.length < 2) return;
    for (const head of heads) {
      const line = node("tr", table), name = node("th", line, `head ${head + 1}`), cell = node("td", line);
      name.style.borderLeftColor = colour(head);
      line.dataset.head = head + 1;
      const shares = names.map((_, j) => [weight(head, state.token, j), j]).filter(([value]) => value >= 5e-5);
      for (const [value, j] of shares.sort((a, b) => b[0] - a[0]).slice(0, 3)) {
        const item = node("span", cell);
        node("bdi", item, visible(names[j]));
        node("output", item, digits(value)).dataset.column = j;
      }
    }
  }

  const roleOf = (it, head) => it.roles?.[head];
  const roleText = (role) => (role ? `${role[0]} ${Math.round(100 * role[1])}%` : "");

  function drawMap() {
    const [, n, m] = sheet().shape, element = $("map"), names = columns().map(visible);
    const rows = look().rows.map(visible), room = $("map").parentElement.clientWidth, pen0 = element.getContext("2d");
    pen0.font = "12px system-ui, sans-serif";
    const wide = (texts, count) => Math.min(120, most(texts.slice(0, count).map((it) => pen0.measureText(it).width))) + 8;
    const left = wide(rows, n), cell = Math.max(9, Math.min(30, Math.floor((room - left - 8) / m)));
    const head = wide(names, m), pen = canvas(element, left + m * cell + 4, head + n * cell + 4);
    const mark = rgb(ink("--mark")), top = sheet().measure === "attention" ? 1 : scale();
    const fit = (text) => {
      let cut = text;
      while (cut.length > 1 && pen.measureText(cut).width > 120) cut = cut.slice(0, -1);
      return cut;
    };
    pen.font = `${Math.min(12, cell + 2)}px system-ui, sans-serif`;
    pen.textBaseline = "middle";
    pen.fillStyle = ink("--ink");
    pen.textAlign = "right";
    for (let i = 0; i < n; i++) pen.fillText(fit(rows[i] ?? ""), left - 5, head + (i + 0.5) * cell);
    pen.textAlign = "left";
    for (let j = 0; j < m; j++) {
      pen.save();
      pen.translate(left + (j + 0.5) * cell, head - 5);
      pen.rotate(-Math.PI / 2);
      pen.fillText(fit(names[j] ?? ""), 0, 0);
      pen.restore();
    }
    for (let i = 0; i < n; i++)
      for (let j = 0; j < m; j++) {
        pen.fillStyle = `rgba(${mark},${Math.sqrt(Math.min(1, mean(i, j) / top))})`;
        pen.fillRect(left + j * cell, head + i * cell, cell, cell);
      }
    pen.strokeStyle = ink("--line");
    pen.strokeRect(left - 0.5, head - 0.5, m * cell + 1, n * cell + 1);
    $("map-title").textContent = look().name === "cross" ? "Alignment: what is written, by what is read" : "Map";
    const at = (event) => {
      const box = element.getBoundingClientRect();
      const i = Math.floor((event.clientY - box.top - head) / cell), j = Math.floor((event.clientX - box.left - left) / cell);
      return i >= 0 && i < n && j >= 0 && j < m ? [i, j] : null;
    };
    element.onmousemove = (event) => {
      const found = at(event);
      $("map-value").textContent = found ? `${rows[found[0]]} \u2192 ${names[found[1]]}: ${digits(mean(...found))}` : "";
    };
    element.onclick = (event) => {
      const found = at(event);
      if (found) choose({ token: found[0], other: found[1], pinned: true });
    };
  }

  function drawGrid() {
    const grid = $("grid"), table = node("table", null, undefined, "heads"), mark = rgb(ink("--mark"));
    grid.replaceChildren(table);
    const counted = look().sheets.some((it) => it.distance);
    const [length, width] = look().tokens, blocks = look().sheets[0].overview_shape;
    const coarse = blocks[1] < length || blocks[2] < width ? ` Of ${Math.max(length, width)} tokens, blocks are shown.` : "";
    $("grid-note").textContent =
      `One small map for each head; e is its entropy in nats${counted ? ", d how far it looks, in tokens" : ""}.` +
      `${look().sheets.some((it) => it.roles?.some(Boolean)) ? ROLES : ""}${coarse}`;
    look().sheets.forEach((it, index) => {
      const line = node("tr", table), [h, p, q] = it.overview_shape, values = memo(it, "overview");
      node("th", line, it.label === "all" ? "all layers" : `layer ${it.label}`);
      for (let head = 0; head < h; head++) {
        const button = node("button", node("td", line)), small = node("canvas", button);
        const own = values.subarray(head * p * q, (head + 1) * p * q), top = most(own);
        const far = it.distance ? ` d ${it.distance[head].toFixed(1)}` : "";
        node("small", button, `${h > 1 ? `${head + 1}: ` : ""}e ${it.entropy[head].toFixed(2)}${far}`);
        if (roleOf(it, head)) node("small", button, roleText(roleOf(it, head)), "role");
        button.title = `${layerName(it.label)}, head ${head + 1}`;
        button.dataset.role = roleOf(it, head)?.[0] ?? "";
        Object.assign(button.dataset, { layer: it.label, head: head + 1, entropy: it.entropy[head] });
        if (it.distance) button.dataset.distance = it.distance[head];
        button.setAttribute("aria-pressed", index === state.sheet && state.heads.has(head));
        button.onclick = () => {
          choose({ sheet: index, heads: new Set([head]), other: null });
          $("bar").scrollIntoView();
        };
        small.width = q;
        small.height = p;
        const pen = small.getContext("2d"), image = pen.createImageData(q, p);
        for (let k = 0; k < p * q; k++) image.data.set([...mark, Math.round(255 * Math.sqrt(own[k] / top))], 4 * k);
        pen.putImageData(image, 0, 0);
      }
    });
  }

  function drawDots() {
    const dots = $("dots"), sheets = look().sheets.filter((it) => it.distance && it.measure === "attention");
    const points = sheets.flatMap((it) => it.entropy.map((y, head) => [it.distance[head], y, it, head]));
    $("spread").hidden = points.length < 2;
    dots.replaceChildren();
    if (points.length < 2) return;
    const make = (tag, attributes, text) => {
      const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
      if (text !== undefined) made.textContent = text;
      dots.append(made);
      return made;
    };
    const far = most(points.map((it) => it[0])) * 1.05, even = most(points.map((it) => it[1])) * 1.08;
    const x = (value) => 46 + (580 * value) / far, y = (value) => 222 - (208 * value) / even;
    make("line", { x1: 46, y1: 222, x2: 626, y2: 222 });
    make("line", { x1: 46, y1: 14, x2: 46, y2: 222 });
    for (let tick = 0; tick <= 4; tick++) {
      make("text", { x: x((far * tick) / 4), y: 238, "text-anchor": "middle" }, ((far * tick) / 4).toFixed(1));
      make("text", { x: 40, y: y((even * tick) / 4) + 4, "text-anchor": "end" }, ((even * tick) / 4).toFixed(1));
    }
    make("text", { x: 626, y: 255, "text-anchor": "end" }, "distance");
    make("text", { x: 52, y: 20 }, "entropy");
    for (const [a, b, it, head] of points) {
      const index = look().sheets.indexOf(it), on = index === state.sheet && state.heads.has(head);
      const dot = make("circle", { cx: x(a), cy: y(b), r: on ? 8 : 5, fill: colour(index), "fill-opacity": on ? 1 : 0.7 });
      const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
      const role = roleOf(it, head) ? `, ${roleText(roleOf(it, head))}` : "";
      title.textContent = `layer ${it.label}, head ${head + 1}: distance ${a.toFixed(2)}, entropy ${b.toFixed(3)}${role}`;
      dot.append(title);
      dot.onclick = () => choose({ sheet: index, heads: new Set([head]), other: null });
    }
    const labels = [...new Set(sheets)];
    labels.slice(0, 12).forEach((it, index) => {
      make("circle", { cx: 560, cy: 20 + 15 * index, r: 4, fill: colour(look().sheets.indexOf(it)) });
      make("text", { x: 570, y: 24 + 15 * index }, `layer ${it.label}`);
    });
  }

  function choose(change) {
    const focus = document.activeElement?.dataset.focus;
    Object.assign(state, change);
    state.sheet = Math.max(0, Math.min(state.sheet, look().sheets.length - 1));
    const [h, n, m] = sheet().shape;
    state.heads = new Set([...state.heads].filter((head) => head >= 0 && head < h));
    if (!state.heads.size) state.heads.add(0);
    state.token = Math.max(0, Math.min(state.token, n - 1));
    if (state.other !== null && !(state.other >= 0 && state.other < m)) state.other = null;
    drawChoices();
    drawTokens();
    drawWires(state.pinned ? state.token : null);
    drawRow();
    drawMap();
    drawGrid();
    drawDots();
    if (focus) document.querySelector(`[data-focus="${focus}"]`)?.focus();
  }

  // #look=cross&layer=2&head=1&token=8&other=3: names and numbers as they are shown, tokens from 0
  function fromAddress() {
    const asked = new URLSearchParams(location.hash.slice(1)), change = {};
    const number = (name) => (/^\d{1,6}$/.test(asked.get(name) ?? "") ? Number(asked.get(name)) : null);
    const found = data.looks.findIndex((it) => it.name === asked.get("look"));
    if (found >= 0) change.look = found;
    const sheets = data.looks[change.look ?? state.look].sheets;
    const layer = sheets.findIndex((it) => it.label === asked.get("layer"));
    if (layer >= 0) change.sheet = layer;
    if (asked.get("head") === "all") change.heads = new Set(sheets[change.sheet ?? 0].entropy.keys());
    else if (number("head") !== null) change.heads = new Set([number("head") - 1]);
    if (number("token") !== null) Object.assign(change, { token: number("token"), pinned: true, other: number("other") });
    choose(change);
  }

  const start = data.start;
  state.look = Math.max(0, data.looks.findIndex((it) => it.name === start.look));
  if (start.layer !== null) state.sheet = start.layer;
  state.heads = start.head !== null ? new Set([start.head]) : new Set(look().sheets[0].entropy.keys());
  if (start.token !== null) Object.assign(state, { token: start.token, pinned: true });
  data.looks.forEach((it, index) => (node("option", $("look"), STACKS[it.name] ?? it.name).value = index));
  $("look").onchange = (event) =>
    choose({ look: Number(event.target.value), sheet: 0, heads: new Set([0]), token: Infinity, other: null, pinned: false });
  $("layer").onchange = (event) => choose({ sheet: Number(event.target.value), other: null });
  window.addEventListener("hashchange", fromAddress);
  let waiting = 0;
  window.addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => choose({}));
  });
  fromAddress();
  document.documentElement.dataset.drawn = Math.round(performance.now() - began);
})();
