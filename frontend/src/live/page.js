"use strict";
(() => {
  const run = document.getElementById("run");
  const link = document.getElementById("link");
  let waiting = null, over = false, ending = false, last = 0, failed = 0;

  function say(text, bad) {
    link.textContent = text;
    link.className = bad ? "bad" : "";
  }

  // Replaces only changed elements, which keeps selection and scroll position.
  function put(parent, fresh) {
    const old = [...parent.children], now = [...fresh.children];
    now.forEach((element, i) => {
      // Compare the received HTML: a drawn chart has additional elements.
      element.sent = element.outerHTML;
      if (!old[i]) parent.append(element);
      else if (old[i].tagName === "MAIN" && element.tagName === "MAIN") put(old[i], element);
      else if (old[i].sent !== element.sent) {
        const scrolled = [...old[i].querySelectorAll(".scroll")].map((s) => s.scrollLeft);
        old[i].replaceWith(element);
        element.querySelectorAll(".scroll").forEach((s, k) => { s.scrollLeft = scrolled[k] || 0; });
      }
    });
    old.slice(now.length).forEach((element) => element.remove());
  }

  function draw() {
    if (!waiting || (document.hidden && !over)) return;
    const template = document.createElement("template");
    template.innerHTML = waiting.html;
    put(run, template.content);
    drawCharts();
    document.title = waiting.title;
    waiting = null;
  }

  const events = new EventSource("events");
  events.addEventListener("tick", (event) => {
    waiting = JSON.parse(event.data);
    last = Date.now();
    over = waiting.over;
    ending = /: ending$/.test(waiting.title);
    failed = 0;
    draw();
    if (over) {
      events.close();
      say("the run is over; this is the last of it");
    } else say("live, once a second");
  });
  // The browser retries by itself. Stop after five failures: a finished run does not return.
  events.onerror = () => {
    failed += 1;
    if (over) return;
    if (ending || failed > 5) {
      over = true;
      events.close();
      say("the run has ended, and this page has not heard how: its folder has the rest, report.html too", true);
    } else say("the frontend does not answer; trying again", true);
  };
  document.addEventListener("visibilitychange", draw);
  setInterval(() => {
    if (!over && last && Date.now() - last > 5000) say("no figures for " + Math.round((Date.now() - last) / 1000) + " s", true);
  }, 1000);
})();
