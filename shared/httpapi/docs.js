"use strict";
(async () => {
  const el = (tag, text, ...kids) => {
    const e = document.createElement(tag);
    if (text) e.textContent = text;
    e.append(...kids);
    return e;
  };
  const main = document.getElementById("main");
  let doc;
  try {
    const answer = await fetch("/openapi.json");
    if (!answer.ok) throw new Error("status " + answer.status);
    doc = await answer.json();
  } catch (e) {
    main.replaceChildren(el("p", "The document could not be read: " + e.message));
    return;
  }
  document.getElementById("about").textContent = doc.info.version + ". " + doc.info.description;
  const schemas = (doc.components && doc.components.schemas) || {};
  const name = (s) => {
    if (!s) return "";
    if (s.$ref) return s.$ref.split("/").pop();
    const t = Array.isArray(s.type) ? s.type.join(" or ") : s.type || "any";
    return s.items ? "list of " + name(s.items) : t + (s.enum ? " (" + s.enum.join(", ") + ")" : "");
  };
  const fields = (s) => {
    const t = el("table");
    const required = s.required || [];
    for (const [k, v] of Object.entries(s.properties || {})) {
      const type = el("td");
      const ref = v.$ref || (v.items && v.items.$ref);
      if (ref) {
        const a = el("a", name(v));
        a.href = "#schema-" + ref.split("/").pop();
        type.append(a);
      } else type.textContent = name(v);
      t.append(el("tr", "", el("td", "", el("code", k + (required.includes(k) ? "" : "?"))), type, el("td", v.description || "")));
    }
    return t;
  };
  const body = (content) => {
    const s = content && Object.values(content)[0] && Object.values(content)[0].schema;
    if (!s) return null;
    const a = el("a", name(s));
    if (s.$ref) a.href = "#schema-" + s.$ref.split("/").pop();
    return a;
  };
  const out = [];
  const groups = new Map();
  for (const [path, ops] of Object.entries(doc.paths)) {
    for (const [method, op] of Object.entries(ops)) {
      if (!op || !op.responses) continue;
      const d = el("details", "", el("summary", "", Object.assign(el("span", method.toUpperCase()), { className: "method" }), el("code", path), " " + (op.summary || "")));
      if (op.description) d.append(el("p", op.description));
      if (op.parameters && op.parameters.length) {
        const t = el("table");
        for (const p of op.parameters) t.append(el("tr", "", el("td", "", el("code", p.name)), el("td", p.in + ", " + name(p.schema)), el("td", p.description || (p.schema && p.schema.description) || "")));
        d.append(el("h4", "Parameters"), t);
      }
      const b = op.requestBody && body(op.requestBody.content);
      if (b) d.append(el("p", "Body: ", b));
      const t = el("table");
      for (const [code, r] of Object.entries(op.responses)) t.append(el("tr", "", el("td", code), el("td", r.description || ""), el("td", "", body(r.content) || "")));
      d.append(el("h4", "Answers"), t);
      const tag = (op.tags && op.tags[0]) || "other";
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(d);
    }
  }
  for (const [tag, ds] of groups) out.push(el("h2", tag), ...ds);
  out.push(el("h2", "Schemas"));
  for (const k of Object.keys(schemas).sort()) {
    const d = el("details", "", el("summary", "", el("code", k)), schemas[k].description ? el("p", schemas[k].description) : "", fields(schemas[k]));
    d.id = "schema-" + k;
    out.push(d);
  }
  main.replaceChildren(...out);
  addEventListener("hashchange", () => {
    const d = document.getElementById(location.hash.slice(1));
    if (d && d.tagName === "DETAILS") { d.open = true; d.scrollIntoView(); }
  });
})();
