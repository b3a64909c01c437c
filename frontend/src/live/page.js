"use strict";
(() => {
  const run = document.getElementById("run");
  const link = document.getElementById("link");
  let waiting = null, over = false, last = 0;

  function say(text, bad) {
    link.textContent = text;
    link.className = bad ? "bad" : "";
  }

  // Only what differs is put in, so that what is selected or scrolled stays as it is.
  function put(parent, fresh) {
    const old = [...parent.children], now = [...fresh.children];
    now.forEach((element, i) => {
      if (!old[i]) parent.append(element);
      else if (old[i].tagName === "MAIN" && element.tagName === "MAIN") put(old[i], element);
      else if (old[i].outerHTML !== element.outerHTML) {
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
    document.title = waiting.title;
    waiting = null;
  }

  const events = new EventSource("events" + location.search);
  events.addEventListener("tick", (event) => {
    waiting = JSON.parse(event.data);
    last = Date.now();
    over = waiting.over;
    draw();
    if (over) {
      events.close();
      say("the run is over; this is the last of it");
    } else say("live, once a second");
  });
  events.onerror = () => {
    if (!over) say("the frontend does not answer: the run is over, or was ended, or the way to it is cut", true);
  };
  document.addEventListener("visibilitychange", draw);
  setInterval(() => {
    if (!over && last && Date.now() - last > 5000) say("no figures for " + Math.round((Date.now() - last) / 1000) + " s", true);
  }, 1000);
})();
