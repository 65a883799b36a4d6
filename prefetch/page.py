"""The page: the jobs with progress bars, from `GET /v1/jobs`. It needs nothing from elsewhere."""

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>prefetch</title>
<style>
  :root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
  body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
  h1 { font-size: 1.2rem; }
  article { border-top: 1px solid #8886; padding: .8rem 0; }
  header { display: flex; justify-content: space-between; gap: 1rem; }
  progress { width: 100%; }
  .source, .detail { color: #888; font-size: .9em; overflow-wrap: anywhere; }
  .error { color: #c33; }
</style>
<h1>prefetch</h1>
<main id="jobs">Loading…</main>
<script>
const units = ["B", "KiB", "MiB", "GiB", "TiB"];
function bytes(count) {
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return count.toFixed(unit ? 1 : 0) + " " + units[unit];
}
function element(tag, text, kind) {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}
function shown(job) {
  const card = element("article"), head = element("header"), progress = job.progress;
  head.append(element("strong", job.model + " " + job.version), element("span", job.state));
  card.append(head, element("div", job.source, "source"));
  if (progress && progress.total_bytes) {
    const bar = element("progress");
    bar.max = progress.total_bytes;
    bar.value = job.state === "published" ? progress.total_bytes : progress.bytes;
    let text = progress.phase + ": " + bytes(bar.value) + " of " + bytes(progress.total_bytes);
    if (job.state === "running" && progress.bytes_per_second) {
      text += ", " + bytes(progress.bytes_per_second) + "/s, " + Math.ceil(progress.eta_seconds) + " s left";
    }
    if (progress.retries) text += ", " + progress.retries + " retries";
    card.append(bar, element("div", text, "detail"));
  }
  if (job.error) card.append(element("div", job.error, "error"));
  return card;
}
async function refresh() {
  const main = document.getElementById("jobs");
  try {
    const answer = await (await fetch("v1/jobs")).json();
    main.replaceChildren(...answer.jobs.map(shown));
    if (!answer.jobs.length) main.textContent = "Nothing was announced yet.";
  } catch (error) {
    main.textContent = "prefetch does not answer.";
  }
  setTimeout(refresh, 1000);
}
refresh();
</script>
</html>
"""
