// What can be wrong with a page as it is laid out. Each check returns a list of complaints.
({
  // Elements that hold text of their own and are seen.
  texts() {
    const found = [];
    for (const element of document.body.querySelectorAll("*")) {
      if (element.closest("details:not([open]) > :not(summary)")) continue;
      const own = [...element.childNodes].filter((node) => node.nodeType === 3 && node.data.trim());
      if (!own.length || !element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
      const range = document.createRange();
      range.setStartBefore(own[0]);
      range.setEndAfter(own.at(-1));
      const boxes = [...range.getClientRects()].filter((box) => box.width > 0);
      if (boxes.length) found.push({ element, boxes, text: own.map((node) => node.data).join(" ").trim() });
    }
    return found;
  },

  named(element) {
    const figure = element.closest("figure")?.querySelector("figcaption")?.firstChild?.textContent ?? "page";
    return `${figure.trim()}: <${element.localName} class="${element.getAttribute("class") ?? ""}"> ${element.textContent.trim().slice(0, 40)}`;
  },

  scrolls() {
    const root = document.documentElement;
    if (root.scrollWidth <= root.clientWidth) return [];
    const outside = [...document.body.querySelectorAll("*")].filter(
      (element) => !element.closest(".wide, pre") && element.getBoundingClientRect().right > root.clientWidth + 0.5,
    );
    const width = `${root.scrollWidth} wide on ${root.clientWidth}`;
    return [width, ...outside.map((element) => this.named(element)).slice(-3)];
  },

  // Of the viewport, and of its figure. Wide things may scroll in a box of their own; names at the
  // ends of lines, and labels of bars of bytes on a wide page, may be cut with "…".
  outside() {
    const page = { left: 0, right: document.documentElement.clientWidth };
    return this.texts()
      .filter(({ element }) => !element.closest(".wide, pre, .names"))
      .filter(({ element }) => getComputedStyle(element).textOverflow !== "ellipsis")
      .filter(({ element, boxes }) => {
        const figure = element.closest("figure")?.getBoundingClientRect() ?? page;
        const [left, right] = [Math.max(figure.left, page.left), Math.min(figure.right, page.right)];
        return boxes.some((box) => box.left < left - 0.5 || box.right > right + 0.5);
      })
      .map(({ element }) => this.named(element));
  },

  // Texts of one axis, one column of names or one row do not cover each other.
  overlaps() {
    const complaints = [];
    const groups = [".rules i", ".yticks i", ".along i", ".names > div", ".tick i"];
    for (const drawing of document.querySelectorAll(".barchart, .linechart, .timeline")) {
      for (const selector of groups) {
        const shown = [...drawing.querySelectorAll(selector)].filter((each) => each.checkVisibility());
        const boxes = shown.map((each) => each.getBoundingClientRect());
        for (let first = 0; first < boxes.length; first++)
          for (let second = first + 1; second < boxes.length; second++)
            if (this.meet(boxes[first], boxes[second]))
              complaints.push(`${this.named(shown[first])} and ${shown[second].textContent}`);
      }
    }
    return complaints;
  },

  meet(one, other) {
    const across = Math.min(one.right, other.right) - Math.max(one.left, other.left);
    const down = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
    return across > 0.5 && down > 0.5;
  },

  // Every drawing has a size, and all that it is made of.
  undrawn() {
    const complaints = [];
    const drawings = [...document.querySelectorAll(".barchart, .linechart, .timeline, .bars, .map")];
    for (const drawing of drawings) {
      const box = drawing.getBoundingClientRect();
      if (box.width < 100 || box.height < 10) complaints.push(`${this.named(drawing)}: ${box.width} x ${box.height}`);
    }
    for (const part of document.querySelectorAll("path.stroke, .barchart .fill, .barchart .dot, .linechart .dot, .whisker, .bar, .track i, .map .row")) {
      if (!part.checkVisibility()) continue; // names at the ends of lines, on a narrow page
      const box = part.getBoundingClientRect();
      const line = part.localName === "path" && part.getTotalLength() > 0;
      const fallback = part.localName === "path" ? part.getAttribute("d").includes("L") : box.width > 0 && box.height > 0;
      if (!line && !fallback) complaints.push(`${this.named(part)} is not drawn`);
      const style = getComputedStyle(part);
      const paint = part.localName === "path" ? style.stroke : `${style.backgroundColor} ${style.backgroundImage} ${style.borderColor}`;
      if (paint === "none" || paint === "") complaints.push(`${this.named(part)} has no colour`);
    }
    return complaints;
  },

  // Bars, marks and lines stay in their plot, and its axis is as wide as it is. A mark's middle
  // counts, a line may have its width.
  astray() {
    const complaints = [];
    for (const rules of document.querySelectorAll(".barchart > .rules")) {
      const [axis, plot] = [rules, rules.parentElement.querySelector(".plot")].map((each) => each.getBoundingClientRect());
      if (Math.abs(axis.left - plot.left) > 1 || Math.abs(axis.right - plot.right) > 1)
        complaints.push(`${this.named(rules)}: the axis is not as wide as the bars' plot`);
    }
    for (const part of document.querySelectorAll(".plot .fill, .plot .whisker, .plot .dot, .plot path, .plot .level")) {
      const plot = part.closest(".plot").getBoundingClientRect();
      const box = part.getBoundingClientRect();
      const dot = part.classList.contains("dot");
      const [left, right] = dot ? [(box.left + box.right) / 2, (box.left + box.right) / 2] : [box.left, box.right];
      const [top, bottom] = dot ? [(box.top + box.bottom) / 2, (box.top + box.bottom) / 2] : [box.top, box.bottom];
      if (left < plot.left - 1.5 || right > plot.right + 1.5 || top < plot.top - 1.5 || bottom > plot.bottom + 1.5)
        complaints.push(`${this.named(part)} leaves its plot`);
    }
    return complaints;
  },

  // A colour as the browser paints it: red, green, blue from 0 to 255, and how opaque from 0 to 1.
  painted(colour) {
    this.canvas ??= new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    this.canvas.clearRect(0, 0, 1, 1);
    this.canvas.fillStyle = colour;
    this.canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = this.canvas.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  },

  over([red, green, blue, alpha], below) {
    return [red, green, blue].map((part, at) => part * alpha + below[at] * (1 - alpha)).concat(1);
  },

  behind(element) {
    if (!element) return [255, 255, 255, 1];
    const colour = this.painted(getComputedStyle(element).backgroundColor);
    return colour[3] === 1 ? colour : this.over(colour, this.behind(element.parentElement));
  },

  luminance([red, green, blue]) {
    const linear = (part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  },

  ratio(one, other) {
    const [low, high] = [this.luminance(one), this.luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  },

  // Of WCAG 2 level AA: 4.5 to 1, large text 3 to 1.
  faint() {
    const complaints = new Set();
    for (const { element } of this.texts()) {
      const style = getComputedStyle(element);
      const size = parseFloat(style.fontSize);
      const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
      const below = this.behind(element);
      const contrast = this.ratio(this.over(this.painted(style.color), below), below);
      if (contrast < (large ? 3 : 4.5)) complaints.add(`${contrast.toFixed(2)}: ${this.named(element)}`);
    }
    return [...complaints];
  },

  // Lines, marks and bars differ from what is behind them: 3 to 1.
  pale() {
    const complaints = new Set();
    for (const part of document.querySelectorAll("path.stroke, .dot, .barchart .fill, .bar")) {
      const colour = getComputedStyle(part);
      const paint = part.localName === "path" ? colour.stroke : colour.getPropertyValue("--c") || colour.backgroundColor;
      const below = this.behind(part.closest("figure"));
      const contrast = this.ratio(this.over(this.painted(paint), below), below);
      if (contrast < 3) complaints.add(`${contrast.toFixed(2)}: ${this.named(part)}`);
    }
    return [...complaints];
  },
})
