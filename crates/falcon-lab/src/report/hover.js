// Shows the values under the pointer, which are computed from the lines.
(() => {
  const names = [...document.querySelectorAll('.summary tbody th')].map(th => th.textContent);
  const tip = document.createElement('div');
  const rule = document.createElement('div');
  tip.className = 'tip';
  rule.className = 'rule';
  const add = (parent, tag, text, name) => {
    const element = parent.appendChild(document.createElement(tag));
    element.textContent = text;
    if (name) element.className = name;
    return element;
  };

  const pointsOf = path => path.points ??= path.getAttribute('d').slice(1).replace('L', ' ').split(' ')
    .reduce((all, n, i, list) => (i % 2 ? all.push([+list[i - 1], +n]) : 0, all), []);

  const nearest = (points, x) => {
    let low = 0, high = points.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (points[middle][0] < x) low = middle; else high = middle;
    }
    return x - points[low][0] < points[high][0] - x ? points[low] : points[high];
  };

  const valueAt = (plot, y) => {
    const [low, high] = plot.dataset.y.split(' ').map(Number), part = 1 - y / 1000;
    const value = 'log' in plot.dataset ? low * (high / low) ** part : low + (high - low) * part;
    if ('percent' in plot.dataset) return (100 * value).toFixed(2) + '%';
    // Coordinates are rounded: a value close to zero is zero.
    const text = Math.abs(value) < 1e-5 * (high - low) && !('log' in plot.dataset) ? 0 : value;
    return Math.abs(text) >= 1e4 ? Math.round(text).toLocaleString('en') : String(Number(text.toPrecision(4)));
  };

  const nameAt = (plot, x) => {
    if (plot.dataset.x) {
      const [low, high] = plot.dataset.x.split(' ').map(Number);
      return 'step ' + Math.round(low + (high - low) * x / 1000).toLocaleString('en');
    }
    const labels = plot.querySelectorAll('.x span');
    return labels[Math.min(labels.length - 1, Math.floor(x * labels.length / 1000))].dataset.name;
  };

  const show = (plot, event) => {
    const box = plot.getBoundingClientRect();
    const x = Math.max(0, Math.min(1000, 1000 * (event.clientX - box.left) / box.width));
    const found = [...plot.querySelectorAll('.line')]
      .filter(path => getComputedStyle(path).display !== 'none')
      .map(path => [path, nearest(pointsOf(path), x)]);
    if (!found.length) return hide();
    // All lines are read at the same place: that of the nearest point of any line.
    const at = found.reduce((best, [, p]) => Math.abs(p[0] - x) < Math.abs(best - x) ? p[0] : best, Infinity);
    tip.replaceChildren();
    add(tip, 'p', nameAt(plot, at));
    for (const [path] of found) {
      const points = pointsOf(path), point = nearest(points, at);
      if (at < points[0][0] - 15 || at > points[points.length - 1][0] + 15) continue;
      const run = +path.getAttribute('class').match(/r(\d+)/)[1];
      const row = add(tip, 'div', '', 'r' + run);
      add(row, 'i', '');
      add(row, 'span', names[run]);
      const value = add(row, 'b', valueAt(plot, point[1]));
      // The step of the value, if it is not quite at that place.
      if (Math.abs(point[0] - at) > 4) add(value, 'small', ' at ' + nameAt(plot, point[0]));
    }
    plot.append(rule);
    rule.style.left = at / 10 + '%';
    document.body.append(tip);
    const left = event.clientX + 14 + tip.offsetWidth > innerWidth ? event.clientX - 14 - tip.offsetWidth : event.clientX + 14;
    tip.style.left = Math.max(4, left) + scrollX + 'px';
    tip.style.top = Math.max(4, Math.min(event.clientY + 12, innerHeight - tip.offsetHeight - 4)) + scrollY + 'px';
  };

  const hide = () => { tip.remove(); rule.remove(); };

  for (const plot of document.querySelectorAll('.plot')) {
    plot.addEventListener('pointermove', event => show(plot, event));
    plot.addEventListener('pointerdown', event => show(plot, event));
    plot.addEventListener('pointerleave', hide);
  }
})();
