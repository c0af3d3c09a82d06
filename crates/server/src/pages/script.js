// Renews the numbers of a page while it is seen. The page is whole without it.
"use strict";

(() => {
  const INTERVAL = 10_000;
  const texts = document.querySelectorAll("[data-live]");
  const charts = document.querySelectorAll("[data-chart]");
  if (texts.length === 0 && charts.length === 0) return;

  let paused = false;
  let timer = 0;

  // The corners of a line that begins at zero and fills the height, as the server draws it.
  const corners = (values, width, height) => {
    const most = Math.max(1, ...values);
    const steps = Math.max(1, values.length - 1);
    return values
      .map((value, at) => {
        const x = Math.floor((at * (width - 2)) / steps) + 1;
        const y = height - 2 - Math.floor((value * (height - 4)) / most);
        return `${x},${y}`;
      })
      .join(" ");
  };

  const show = (numbers) => {
    for (const element of texts) {
      const text = numbers.texts[element.dataset.live];
      if (text === undefined) continue;
      // A time keeps its element, which says the exact moment to machines.
      const place = element.querySelector("time") ?? element;
      const time = numbers.times[element.dataset.live];
      if (time !== undefined && place.dateTime !== time) place.dateTime = place.title = time;
      if (place.textContent !== text) place.textContent = text;
    }
    for (const chart of charts) {
      const values = numbers.charts[chart.dataset.chart];
      if (!values || values.length < 2) continue;
      const { width, height } = chart.viewBox.baseVal;
      chart.querySelector("polyline").setAttribute("points", corners(values, width, height));
    }
  };

  const renew = async () => {
    try {
      const answer = await fetch("/dashboard/live.json", { cache: "no-store" });
      if (answer.ok) show(await answer.json());
    } catch {
      // The server is away; the next attempt may find it.
    }
    plan();
  };

  const plan = () => {
    clearTimeout(timer);
    if (!paused && !document.hidden) timer = setTimeout(renew, INTERVAL);
  };

  const button = document.createElement("button");
  button.type = "button";
  button.className = "live";
  const name = () => {
    button.textContent = paused ? "Renew numbers" : "Stop renewing numbers";
  };
  button.addEventListener("click", () => {
    paused = !paused;
    name();
    if (paused) plan();
    else renew();
  });
  name();
  document.querySelector("header ul").append(Object.assign(document.createElement("li"), { className: "live" }));
  document.querySelector("header ul li.live").append(button);

  document.addEventListener("visibilitychange", plan);
  plan();
})();
