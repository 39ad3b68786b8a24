// Shows samples of a store: volumes, clouds, streams of spikes and events, episodes, rows.
//
// A view is JSON and typed arrays in one buffer: the length of the JSON in 4 bytes, the JSON, and arrays whose
// places count from its end. Pages hold views as compressed base64; `unistore view` sends them as they are.
(function () {
"use strict";

const COLOURS = [
  [78, 121, 167], [242, 142, 43], [89, 161, 79], [225, 87, 89], [176, 122, 161],
  [118, 183, 178], [237, 201, 72], [255, 157, 167], [156, 117, 95], [140, 140, 140],
];
// Dark blue to yellow, evenly spaced
const SCALE = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const TYPES = {
  uint8: Uint8Array, int8: Int8Array, uint16: Uint16Array, int16: Int16Array, uint32: Uint32Array,
  int32: Int32Array, float32: Float32Array, float64: Float64Array,
};
const PLANES = ["axis 0", "axis 1", "axis 2"];
const PLAY_INTERVAL = 60;
const MAX_LEGEND = 40;

// Functions that draw again when the theme or the size of the window changes
let redraws = [];
// Ends what the sample that was shown before it left running
let stopPlaying = function () {};

// ---------------------------------------------------------------------------------------------- elements

function make(tag, properties, children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (name in element) {
      element[name] = value;
    } else {
      element.setAttribute(name, value);
    }
  }
  element.append(...(children || []));
  return element;
}

function formatNumber(value) {
  if (value === null || value === undefined) {
    return "–";
  }
  if (!Number.isFinite(value)) {
    return String(value);
  }
  if (Number.isInteger(value) || Math.abs(value) >= 1e4) {
    return (Math.round(value) || 0).toLocaleString("en-US");
  }
  if (value !== 0 && Math.abs(value) < 1e-4) {
    return value.toPrecision(3);
  }
  return Number(value.toPrecision(4)).toLocaleString("en-US", { maximumSignificantDigits: 4 });
}

// A range input with a name and the text of its value
function slider(name, options, onInput) {
  const format = options.format || formatNumber;
  const input = make("input", { type: "range" });
  input.min = options.min;
  input.max = options.max;
  input.step = options.step || 1;
  input.value = options.value;
  const output = make("output", { textContent: format(Number(input.value)) });
  const label = make("label", { className: options.wide ? "slider wide-slider" : "slider" });
  label.append(make("span", { textContent: name }), input, output);
  function show() {
    output.textContent = format(Number(input.value));
  }
  input.addEventListener("input", function () {
    show();
    onInput(Number(input.value));
  });
  function set(value) {
    input.value = value;
    show();
  }
  return { label: label, input: input, set: set };
}

function select(name, options, onChange) {
  const list = make("select");
  options.forEach(function (text, number) {
    list.append(make("option", { value: number, textContent: text }));
  });
  list.addEventListener("change", function () {
    onChange(Number(list.value));
  });
  const label = make("label", {}, [make("span", { textContent: name }), list]);
  return { label: label, list: list };
}

function checkbox(name, isChecked, colour, onChange) {
  const box = make("input", { type: "checkbox", checked: isChecked });
  box.addEventListener("change", function () {
    onChange(box.checked);
  });
  return make("label", {}, [box, swatch(colour), make("span", { textContent: name })]);
}

function swatch(colour) {
  const mark = make("i", { className: "swatch" });
  mark.style.background = css(colour);
  return mark;
}

// Names of colours, as many as are read at a glance, after a first text
function legendOf(marks, first) {
  const shown = marks.slice(0, MAX_LEGEND).map(function (mark) {
    return make("span", {}, [swatch(mark[0]), String(mark[1])]);
  });
  const more = marks.length > MAX_LEGEND ? "and " + (marks.length - MAX_LEGEND) + " more" : "";
  return make("div", { className: "legend" }, [first, ...shown, more]);
}

function button(name, onClick) {
  const element = make("button", { type: "button", textContent: name });
  element.addEventListener("click", onClick);
  return element;
}

function controls(children) {
  return make("div", { className: "controls" }, children);
}

function css(colour) {
  return "rgb(" + colour.join(",") + ")";
}

function theme(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function themeColour(name) {
  const hex = theme(name);
  return [1, 3, 5].map(function (place) {
    return parseInt(hex.slice(place, place + 2), 16);
  });
}

// Gives a canvas the pixels of the screen that it covers, and returns the width and height of these
function fit(canvas) {
  const box = canvas.getBoundingClientRect();
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(box.width * ratio));
  canvas.height = Math.max(1, Math.round(box.height * ratio));
  return ratio;
}

function redrawWith(draw) {
  redraws.push(draw);
  draw();
}

function clamp(value, low, high) {
  return Math.max(low, Math.min(high, value));
}

function colourOf(number) {
  return COLOURS[number % COLOURS.length];
}

function scaleColour(share) {
  const place = clamp(share, 0, 1) * (SCALE.length - 1);
  const first = Math.min(SCALE.length - 2, Math.floor(place));
  const part = place - first;
  return SCALE[first].map(function (value, channel) {
    return Math.round(value + (SCALE[first + 1][channel] - value) * part);
  });
}

// ---------------------------------------------------------------------------------------------- the wire

async function inflate(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let place = 0; place < binary.length; place += 1) {
    bytes[place] = binary.charCodeAt(place);
  }
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const arrays = {};
  for (const [name, about] of Object.entries(head.arrays)) {
    const size = about.shape.reduce(function (product, extent) { return product * extent; }, 1);
    arrays[name] = new TYPES[about.dtype](buffer, 4 + length + about.place, size);
    arrays[name].shape = about.shape;
  }
  return { head: head, arrays: arrays };
}

// ---------------------------------------------------------------------------------------------- pictures

function grayPixels(values, count, low, high) {
  const pixels = new Uint8ClampedArray(count * 4);
  const scale = 255 / Math.max(high - low, 1e-9);
  for (let place = 0; place < count; place += 1) {
    const bright = (values[place] - low) * scale;
    pixels[4 * place] = bright;
    pixels[4 * place + 1] = bright;
    pixels[4 * place + 2] = bright;
    pixels[4 * place + 3] = 255;
  }
  return pixels;
}

function colouredPixels(values, count) {
  const pixels = new Uint8ClampedArray(count * 4);
  for (let place = 0; place < count; place += 1) {
    pixels[4 * place] = values[3 * place];
    pixels[4 * place + 1] = values[3 * place + 1];
    pixels[4 * place + 2] = values[3 * place + 2];
    pixels[4 * place + 3] = 255;
  }
  return pixels;
}

// Fills a canvas of as many pixels
function put(canvas, pixels, width, height) {
  canvas.width = width;
  canvas.height = height;
  if (width && height) {
    canvas.getContext("2d").putImageData(new ImageData(pixels, width, height), 0, 0);
  }
}

// An image (h, w) or (h, w, 3) of bytes: gray between the limits, or colours
function putImage(canvas, values, shape, limits) {
  const count = shape[0] * shape[1];
  const pixels = shape.length === 3 ? colouredPixels(values, count)
    : grayPixels(values, count, limits[0], limits[1]);
  put(canvas, pixels, shape[1], shape[0]);
}

// ---------------------------------------------------------------------------------------------- volumes

function volumeWidget(root, head, arrays) {
  const blocks = arrays.image.shape;
  const spacing = head.spacing || [1, 1, 1];
  const position = blocks.map(function (count, axis) {
    return Math.min(count - 1, Math.floor(head.full[axis] / head.block[axis]));
  });
  let [low, high] = head.window;
  let opacity = 0.4;
  const visible = head.overlays.map(function (overlay) { return overlay.shown; });
  if (blocks.includes(0)) {
    root.append(make("p", { textContent: "no voxels" }));
    return;
  }

  const panels = [0, 1, 2].map(makePanel);
  const size = head.presets[0].high - head.presets[0].low;
  const whole = { min: Math.floor(head.range[0]), max: Math.ceil(head.range[1]) };
  const step = whole.max - whole.min > 20 ? 1 : (head.range[1] - head.range[0]) / 200;
  const level = slider("level", { ...whole, step: step, value: (low + high) / 2 }, setWindow);
  const width = slider("width", { min: step, max: whole.max - whole.min, step: step, value: size }, setWindow);
  const names = head.presets.map(function (preset) {
    return preset.name + " (" + formatNumber(preset.low) + " to " + formatNumber(preset.high) + ")";
  });
  const presets = select("window", names, function (number) {
    low = head.presets[number].low;
    high = head.presets[number].high;
    level.set((low + high) / 2);
    width.set(high - low);
    draw();
  });
  const boxes = head.overlays.map(function (overlay, number) {
    return checkbox(overlay.name, overlay.shown, colourOf(number + 1), function (checked) {
      visible[number] = checked;
      draw();
    });
  });
  if (boxes.length) {
    const options = { min: 0, max: 100, value: 100 * opacity, format: function (value) { return value + " %"; } };
    boxes.push(slider("overlay", options, function (value) {
      opacity = value / 100;
      draw();
    }).label);
  }
  root.append(controls([presets.label, level.label, width.label]));
  if (boxes.length) {
    root.append(controls(boxes));
  }
  head.overlays.forEach(function (overlay, number) {
    if (overlay.classes) {
      const marks = overlay.classes.map(function (one) { return [colourOf(number + one[0]), one[1]]; });
      root.append(legendOf(marks, overlay.name + ":"));
    }
  });
  root.append(make("div", { className: "panels" }, panels.map(function (panel) { return panel.figure; })));
  draw();

  function setWindow() {
    low = Number(level.input.value) - Number(width.input.value) / 2;
    high = low + Number(width.input.value);
    draw();
  }

  function makePanel(axis) {
    const [down, across] = [0, 1, 2].filter(function (other) { return other !== axis; });
    const isFlipped = head.head_up && down === 0;
    const name = head.planes[axis] || PLANES[axis];
    const canvas = make("canvas", { role: "img", "aria-label": name + " plane" });
    const lineAcross = make("div", { className: "cross across" });
    const lineDown = make("div", { className: "cross down" });
    const plane = make("div", { className: "plane" }, [canvas, lineAcross, lineDown]);
    const height = head.shape[down] * spacing[down];
    const width = head.shape[across] * spacing[across];
    plane.style.aspectRatio = width + " / " + height;
    plane.style.maxWidth = 420 * width / height + "px";
    const caption = make("figcaption");
    const control = slider(name, { min: 0, max: blocks[axis] - 1, value: position[axis], format: voxelOf, wide: true },
      function (value) {
        position[axis] = value;
        draw();
      });
    function voxelOf(block) {
      const first = block * head.block[axis];
      return formatNumber(isFull(axis, block) ? head.full[axis] : first);
    }
    plane.addEventListener("pointerdown", function (event) {
      const box = plane.getBoundingClientRect();
      let share = (event.clientY - box.top) / box.height;
      share = isFlipped ? 1 - share : share;
      moveTo(down, share);
      moveTo(across, (event.clientX - box.left) / box.width);
      draw();
    });
    return {
      axis: axis, down: down, across: across, isFlipped: isFlipped, canvas: canvas, caption: caption,
      lineAcross: lineAcross, lineDown: lineDown, control: control,
      figure: make("figure", {}, [plane, control.label, caption]),
    };
  }

  function moveTo(axis, share) {
    position[axis] = clamp(Math.floor(share * head.shape[axis] / head.block[axis]), 0, blocks[axis] - 1);
    panels[axis].control.set(position[axis]);
  }

  function isFull(axis, block) {
    return "plane" + axis in arrays && block === Math.floor(head.full[axis] / head.block[axis]);
  }

  function draw() {
    panels.forEach(drawPanel);
  }

  function drawPanel(panel) {
    const full = isFull(panel.axis, position[panel.axis]);
    const rows = full ? head.shape[panel.down] : blocks[panel.down];
    const columns = full ? head.shape[panel.across] : blocks[panel.across];
    const values = full ? arrays["plane" + panel.axis] : planeOf(arrays.image, panel);
    const pixels = grayPixels(values, rows * columns, low, high);
    visible.forEach(function (isVisible, number) {
      if (isVisible && opacity > 0) {
        const stepDown = full ? head.block[panel.down] : 1;
        const stepAcross = full ? head.block[panel.across] : 1;
        tint(pixels, rows, columns, planeOf(arrays["overlay" + number], panel), stepDown, stepAcross, number);
      }
    });
    put(panel.canvas, panel.isFlipped ? flipped(pixels, rows, columns) : pixels, columns, rows);
    const down = (position[panel.down] + 0.5) * head.block[panel.down] / head.shape[panel.down];
    const across = (position[panel.across] + 0.5) * head.block[panel.across] / head.shape[panel.across];
    panel.lineAcross.style.top = 100 * (panel.isFlipped ? 1 - down : down) + "%";
    panel.lineDown.style.left = 100 * across + "%";
    const means = Math.max(...head.block) > 1 ? "means of " + head.block.join(" × ") + " voxels" : "all voxels";
    panel.caption.textContent = "of " + formatNumber(head.shape[panel.axis]) + ", "
      + (full ? "every voxel of this plane" : means);
  }

  // One plane of blocks (z, y, x)
  function planeOf(values, panel) {
    const strides = [blocks[1] * blocks[2], blocks[2], 1];
    const plane = new values.constructor(blocks[panel.down] * blocks[panel.across]);
    const start = position[panel.axis] * strides[panel.axis];
    let place = 0;
    for (let row = 0; row < blocks[panel.down]; row += 1) {
      for (let column = 0; column < blocks[panel.across]; column += 1) {
        plane[place] = values[start + row * strides[panel.down] + column * strides[panel.across]];
        place += 1;
      }
    }
    return plane;
  }

  // Classes of a label have colours of their own, from that of the label on
  function tint(pixels, rows, columns, overlay, stepDown, stepAcross, number) {
    const width = Math.ceil(columns / stepAcross);
    for (let row = 0; row < rows; row += 1) {
      for (let column = 0; column < columns; column += 1) {
        const value = overlay[Math.floor(row / stepDown) * width + Math.floor(column / stepAcross)];
        if (value) {
          const colour = colourOf(number + value);
          const place = 4 * (row * columns + column);
          for (let channel = 0; channel < 3; channel += 1) {
            pixels[place + channel] = pixels[place + channel] * (1 - opacity) + colour[channel] * opacity;
          }
        }
      }
    }
  }

  function flipped(pixels, rows, columns) {
    const turned = new Uint8ClampedArray(pixels.length);
    for (let row = 0; row < rows; row += 1) {
      turned.set(pixels.subarray(4 * row * columns, 4 * (row + 1) * columns), 4 * (rows - 1 - row) * columns);
    }
    return turned;
  }
}

// ---------------------------------------------------------------------------------------------- clouds

function cloudWidget(root, head, arrays) {
  const xyz = arrays.xyz;
  const count = xyz.shape[0];
  const columns = [...head.columns, { name: "height", kind: "height" }];
  const canvas = make("canvas", { className: "stage cloud", tabIndex: 0, role: "img",
    "aria-label": "points; arrow keys turn, + and - zoom" });
  const legend = make("div", { className: "legend" });
  const [centre, radius] = extentOf(xyz, count);
  let colours = coloursOf(columns[0]);
  let yaw = 0.6;
  let pitch = 0.7;
  let zoom = 1.3;
  const picker = select("colour by", columns.map(function (column) { return column.name; }), function (number) {
    colours = coloursOf(columns[number]);
    draw();
  });
  root.append(
    controls([
      picker.label,
      button("from above", function () { turnTo(0, Math.PI / 2); }),
      button("from the side", function () { turnTo(0, 0); }),
      button("oblique", function () { turnTo(0.6, 0.7); }),
      button("+", function () { zoomBy(1.25); }),
      button("−", function () { zoomBy(0.8); }),
    ]),
    canvas, legend,
    make("figcaption", { textContent: "Drag or arrow keys turn, wheel or + and − zoom." }),
  );
  canvas.addEventListener("pointermove", function (event) {
    if (event.buttons) {
      turnTo(yaw + event.movementX * 0.008, pitch + event.movementY * 0.008);
    }
  });
  canvas.addEventListener("pointerdown", function (event) {
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("wheel", function (event) {
    event.preventDefault();
    zoomBy(event.deltaY < 0 ? 1.1 : 1 / 1.1);
  }, { passive: false });
  canvas.addEventListener("keydown", function (event) {
    const turns = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };
    const zooms = { "+": 1.25, "=": 1.25, "-": 0.8 };
    if (event.key in turns) {
      event.preventDefault();
      turnTo(yaw + turns[event.key][0], pitch + turns[event.key][1]);
    } else if (event.key in zooms) {
      zoomBy(zooms[event.key]);
    }
  });
  redrawWith(draw);

  function turnTo(newYaw, newPitch) {
    yaw = newYaw;
    pitch = clamp(newPitch, -Math.PI / 2, Math.PI / 2);
    draw();
  }

  function zoomBy(factor) {
    zoom = clamp(zoom * factor, 0.1, 200);
    draw();
  }

  function draw() {
    const ratio = fit(canvas);
    const width = canvas.width;
    const height = canvas.height;
    const image = new ImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    pixels.fill(packed(themeColour("--ground")));
    const depths = new Float32Array(width * height).fill(-Infinity);
    const scale = 0.48 * Math.min(width, height) / radius * zoom;
    const [sinYaw, cosYaw] = [Math.sin(yaw), Math.cos(yaw)];
    const [sinPitch, cosPitch] = [Math.sin(pitch), Math.cos(pitch)];
    const size = Math.round(clamp(Math.sqrt(width * height / Math.max(1, count)) * 0.28 * Math.sqrt(zoom), ratio, 6 * ratio));
    for (let point = 0; point < count; point += 1) {
      const x = xyz[3 * point] - centre[0];
      const y = xyz[3 * point + 1] - centre[1];
      const z = xyz[3 * point + 2] - centre[2];
      const across = x * cosYaw - y * sinYaw;
      const away = x * sinYaw + y * cosYaw;
      const up = away * sinPitch + z * cosPitch;
      const depth = z * sinPitch - away * cosPitch;
      const left = Math.round(width / 2 + across * scale - size / 2);
      const top = Math.round(height / 2 - up * scale - size / 2);
      for (let row = Math.max(0, top); row < Math.min(height, top + size); row += 1) {
        for (let column = Math.max(0, left); column < Math.min(width, left + size); column += 1) {
          const place = row * width + column;
          const isCorner = (row === top || row === top + size - 1) && (column === left || column === left + size - 1);
          if (size > 3 && isCorner) {
            continue;
          }
          if (depth > depths[place]) {
            depths[place] = depth;
            pixels[place] = colours[point];
          }
        }
      }
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  // A colour of each point as four bytes, and the legend
  function coloursOf(column) {
    const packedColours = new Uint32Array(count);
    legend.replaceChildren();
    const values = arrays[column.array];
    if (column.kind === "rgb") {
      for (let point = 0; point < count; point += 1) {
        packedColours[point] = packed([values[3 * point], values[3 * point + 1], values[3 * point + 2]]);
      }
    } else if (column.kind === "class") {
      const ofClasses = column.classes.map(function (name, number) { return packed(colourOf(number)); });
      legend.append(...legendOf(column.classes.map(function (name, number) {
        return [colourOf(number), name];
      }), "").childNodes);
      for (let point = 0; point < count; point += 1) {
        packedColours[point] = ofClasses[values[point]];
      }
    } else {
      const [low, high] = column.kind === "height" ? heights() : column.limits;
      for (let point = 0; point < count; point += 1) {
        const value = column.kind === "height" ? xyz[3 * point + 2] : values[point];
        packedColours[point] = packed(scaleColour((value - low) / (high - low || 1)));
      }
      legend.append(formatNumber(low), scaleBar(), formatNumber(high));
    }
    return packedColours;
  }

  function heights() {
    let [low, high] = [Infinity, -Infinity];
    for (let point = 0; point < count; point += 1) {
      low = Math.min(low, xyz[3 * point + 2]);
      high = Math.max(high, xyz[3 * point + 2]);
    }
    return count ? [low, high] : [0, 1];
  }
}

function packed(colour) {
  return (255 << 24 | colour[2] << 16 | colour[1] << 8 | colour[0]) >>> 0;
}

function scaleBar() {
  const bar = make("canvas", { width: 180, height: 1 });
  const context = bar.getContext("2d");
  for (let place = 0; place < 180; place += 1) {
    context.fillStyle = css(scaleColour(place / 179));
    context.fillRect(place, 0, 1, 1);
  }
  return bar;
}

// The middle of the box around points, and half of its diagonal
function extentOf(xyz, count) {
  const low = [Infinity, Infinity, Infinity];
  const high = [-Infinity, -Infinity, -Infinity];
  for (let place = 0; place < 3 * count; place += 1) {
    if (Number.isFinite(xyz[place])) {
      low[place % 3] = Math.min(low[place % 3], xyz[place]);
      high[place % 3] = Math.max(high[place % 3], xyz[place]);
    }
  }
  const centre = low.map(function (value, axis) { return (value + high[axis]) / 2 || 0; });
  const radius = Math.hypot(...low.map(function (value, axis) { return (high[axis] - value) / 2; }));
  return [centre, Number.isFinite(radius) && radius > 0 ? radius : 1];
}

// ---------------------------------------------------------------------------------------------- streams

function streamWidget(root, head, arrays) {
  const [height, width] = head.shape;
  const total = Math.max(1, head.time.count);
  const isEvents = "t" in arrays;
  let start = 0;
  let length = isEvents ? total / 20 : Math.max(1, Math.round(total / 5));
  const canvas = make("canvas", { role: "img", "aria-label": "spikes or events of a window of time" });
  const caption = make("figcaption");
  const step = isEvents ? total / 500 : 1;
  const time = slider(isEvents ? "from" : "from " + head.time.unit, { min: 0, max: total - (isEvents ? 0 : 1), step: step, value: 0, wide: true, format: isEvents ? timeText : formatNumber },
    function (value) {
      start = value;
      draw();
    });
  const window_ = slider("window", { min: step, max: total, step: step, value: length, format: timeText }, function (value) {
    length = value;
    draw();
  });
  const images = head.images.map(function (image) {
    return { about: image, canvas: make("canvas", { role: "img", "aria-label": image.name }), caption: make("figcaption") };
  });
  const play = playButton(function () {
    start = start + length >= total ? 0 : start + length / 4;
    start = isEvents ? start : Math.max(Math.ceil(start), 0);
    time.set(start);
    draw();
  });
  root.append(controls([play, window_.label]), time.label);
  const figures = [make("figure", { className: "sharp" }, [canvas, caption])];
  images.forEach(function (image) {
    figures.push(make("figure", {}, [image.canvas, image.caption]));
  });
  root.append(make("div", { className: "images" }, figures));
  redrawWith(draw);

  function timeText(value) {
    if (head.time.unit === "µs") {
      return formatNumber(value / 1000) + " ms";
    }
    return formatNumber(value) + " " + head.time.unit + (value === 1 ? "" : "s");
  }

  function draw() {
    const stop = Math.min(total, start + length);
    if (isEvents) {
      drawEvents(stop);
    } else {
      drawCounts(stop);
    }
    images.forEach(drawImage);
  }

  function drawCounts(stop) {
    const sums = new Float64Array(height * width);
    for (let step = Math.floor(start); step < stop; step += 1) {
      if (arrays.bits) {
        addBits(sums, step);
      } else {
        for (let place = 0; place < sums.length; place += 1) {
          sums[place] += arrays.counts[step * sums.length + place];
        }
      }
    }
    let [low, high] = [0, 1e-9];
    for (const value of sums) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    put(canvas, grayPixels(sums, sums.length, low, high), width, height);
    const steps = timeText(Math.max(0, Math.ceil(stop) - Math.floor(start)));
    caption.textContent = "sum of " + steps + " from " + formatNumber(Math.floor(start)) + ", white: " + formatNumber(high);
  }

  function addBits(sums, step) {
    const rowBytes = arrays.bits.shape[2];
    for (let row = 0; row < height; row += 1) {
      const first = (step * height + row) * rowBytes;
      for (let column = 0; column < width; column += 1) {
        sums[row * width + column] += arrays.bits[first + (column >> 3)] >> (column & 7) & 1;
      }
    }
  }

  // Red where pixels became brighter, blue where darker
  function drawEvents(stop) {
    const sums = new Int32Array(height * width);
    const first = firstFrom(arrays.t, start);
    let last = firstFrom(arrays.t, stop);
    if (stop >= total) {
      last = arrays.t.length;
    }
    for (let event = first; event < last; event += 1) {
      sums[arrays.y[event] * width + arrays.x[event]] += arrays.p[event] > 0 ? 1 : -1;
    }
    const ground = themeColour("--panel");
    const pixels = new Uint8ClampedArray(4 * sums.length);
    for (let place = 0; place < sums.length; place += 1) {
      const colour = sums[place] > 0 ? COLOURS[3] : COLOURS[0];
      const part = Math.min(1, Math.abs(sums[place]) / 2);
      for (let channel = 0; channel < 3; channel += 1) {
        pixels[4 * place + channel] = ground[channel] + (colour[channel] - ground[channel]) * part;
      }
      pixels[4 * place + 3] = 255;
    }
    put(canvas, pixels, width, height);
    caption.textContent = formatNumber(last - first) + " events from " + timeText(start) + " to " + timeText(stop)
      + ", red: brighter, blue: darker";
  }

  // The last image before the end of the window
  function drawImage(image) {
    const values = arrays[image.about.array];
    const shape = values.shape.slice(1);
    let number = 0;
    image.about.times.forEach(function (at, place) {
      if (at <= start + length) {
        number = place;
      }
    });
    const size = shape.reduce(function (product, extent) { return product * extent; }, 1);
    putImage(image.canvas, values.subarray(number * size, (number + 1) * size), shape, [0, 255]);
    image.caption.textContent = image.about.name
      + (image.about.times.length > 1 ? " at " + timeText(image.about.times[number]) : "");
  }
}

// The number of the first of ascending values from a bound on
function firstFrom(values, bound) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < bound) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

function playButton(advance) {
  let timer = null;
  const element = button("▶ play", function () {
    if (timer === null) {
      timer = setInterval(advance, PLAY_INTERVAL);
      element.textContent = "❚❚ pause";
    } else {
      stop();
    }
  });
  function stop() {
    clearInterval(timer);
    timer = null;
    element.textContent = "▶ play";
  }
  stopPlaying = stop;
  return element;
}

// ---------------------------------------------------------------------------------------------- episodes

function episodeWidget(root, head, arrays) {
  let step = 0;
  const last = Math.max(0, head.steps - 1);
  const cursor = slider("step", { min: 0, max: last, value: 0, wide: true }, function (value) {
    step = value;
    draw();
  });
  const play = playButton(function () {
    step = step >= last ? 0 : Math.min(last, step + Math.max(1, Math.round(last / 200)));
    cursor.set(step);
    draw();
  });
  const cameras = head.cameras.map(function (about, number) {
    const canvas = make("canvas", { role: "img", "aria-label": about.name });
    canvas.width = about.shape[1];
    canvas.height = about.shape[0];
    return { about: about, number: number, canvas: canvas, caption: make("figcaption"), frame: -1 };
  });
  const charts = head.curves.map(function (about, number) {
    const canvas = make("canvas", { role: "img", "aria-label": about.name });
    const part = about.of > about.lines ? ", " + about.lines + " of " + about.of + " numbers" : "";
    return { about: about, canvas: canvas, values: arrays["curve" + number], part: part, caption: make("figcaption") };
  });
  root.append(controls([play]), cursor.label);
  root.append(make("div", { className: "images" }, cameras.map(function (camera) {
    return make("figure", {}, [camera.canvas, camera.caption]);
  })));
  root.append(make("div", { className: "curves" }, charts.map(function (chart) {
    return make("figure", {}, [chart.caption, chart.canvas]);
  })));
  redrawWith(draw);

  function draw() {
    cameras.forEach(drawCamera);
    const place = clamp(firstFrom(arrays.steps, step + 1) - 1, 0, arrays.steps.length - 1);
    charts.forEach(function (chart) {
      const lines = chart.about.lines;
      const shown = Array.from(chart.values.subarray(place * lines, (place + 1) * lines), formatNumber);
      chart.caption.replaceChildren(make("strong", { textContent: chart.about.name + chart.part }),
        " " + shown.join(", "));
      drawLines(chart.canvas, arrays.steps, chart.values, lines, { cursor: step, ends: head.ends });
    });
  }

  function drawCamera(camera) {
    const frames = arrays["frames" + camera.number];
    const frame = clamp(firstFrom(frames, step + 1) - 1, 0, frames.length - 1);
    if (frame === camera.frame) {
      return;
    }
    camera.frame = frame;
    camera.caption.textContent = camera.about.name + ", step " + formatNumber(frames[frame]);
    const offsets = arrays["offsets" + camera.number];
    const file = arrays["camera" + camera.number].slice(offsets[frame], offsets[frame + 1]);
    createImageBitmap(new Blob([file], { type: "image/jpeg" })).then(function (bitmap) {
      // A later frame may have been asked for in the meantime
      if (camera.frame === frame) {
        camera.canvas.getContext("2d").drawImage(bitmap, 0, 0);
        camera.canvas.dataset.frame = String(frame);
      }
    });
  }
}

// ---------------------------------------------------------------------------------------------- lines

// Lines (n, k) over their places, with axes, a cursor and marks where an episode ends
function drawLines(canvas, places, values, lines, marks) {
  const ratio = fit(canvas);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const width = canvas.width / ratio;
  const height = canvas.height / ratio;
  const box = { left: 52, right: width - 8, top: 8, bottom: height - 22 };
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (Number.isFinite(value)) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  if (low === Infinity) {
    [low, high] = [0, 1];
  }
  if (low === high) {
    [low, high] = [low - 0.5, high + 0.5];
  }
  const count = places.length;
  const first = count ? places[0] : 0;
  const last = count ? places[count - 1] : 1;
  const x = function (value) {
    return box.left + (value - first) / (last - first || 1) * (box.right - box.left);
  };
  const y = function (value) {
    return box.bottom - (value - low) / (high - low) * (box.bottom - box.top);
  };
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = theme("--quiet");
  context.strokeStyle = theme("--line");
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const value of ticks(low, high, 4)) {
    line(box.left, y(value), box.right, y(value));
    context.fillText(formatNumber(value), box.left - 6, y(value));
  }
  context.textBaseline = "top";
  context.textAlign = "center";
  for (const value of ticks(first, last, 6)) {
    context.fillText(formatNumber(value), clamp(x(value), box.left + 4, box.right - 8), box.bottom + 6);
  }
  context.lineWidth = 1.5;
  context.lineJoin = "round";
  for (let number = 0; number < lines; number += 1) {
    context.strokeStyle = css(colourOf(number));
    context.beginPath();
    let isDrawn = false;
    for (let place = 0; place < count; place += 1) {
      const value = values[place * lines + number];
      if (!Number.isFinite(value)) {
        isDrawn = false;
      } else if (isDrawn) {
        context.lineTo(x(places[place]), y(value));
      } else {
        context.moveTo(x(places[place]), y(value));
        isDrawn = true;
      }
    }
    context.stroke();
  }
  context.lineWidth = 1;
  for (const end of marks.ends || []) {
    context.strokeStyle = css(end.name === "terminated" ? COLOURS[3] : COLOURS[1]);
    context.setLineDash([3, 3]);
    line(x(end.step), box.top, x(end.step), box.bottom);
    context.setLineDash([]);
  }
  if (marks.cursor !== undefined) {
    context.strokeStyle = theme("--text");
    line(x(marks.cursor), box.top, x(marks.cursor), box.bottom);
  }

  function line(fromX, fromY, toX, toY) {
    context.beginPath();
    context.moveTo(fromX, fromY);
    context.lineTo(toX, toY);
    context.stroke();
  }
}

// Round numbers between two bounds
function ticks(low, high, most) {
  const rough = (high - low) / most || 1;
  const power = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = [1, 2, 5, 10].map(function (factor) { return factor * power; })
    .find(function (size) { return size >= rough; });
  const found = [];
  for (let number = Math.ceil(low / step); number * step <= high + step * 1e-9; number += 1) {
    found.push(number * step);
  }
  return found;
}

// ---------------------------------------------------------------------------------------------- rows

function rowsWidget(root, head, arrays) {
  const cards = make("div", { className: "cards" });
  const table = make("table", { className: "values" });
  root.append(cards);
  for (const column of head.columns) {
    const form = column.dtype + (column.shape.length ? " " + column.shape.join(" × ") : "");
    if (column.array === undefined) {
      const text = column.text === undefined ? formatNumber(column.value) : column.text;
      const cells = [column.name, text, form].map(function (cell, place) {
        return make(place ? "td" : "th", { textContent: cell });
      });
      table.append(make("tr", {}, cells));
      continue;
    }
    const canvas = make("canvas", { role: "img", "aria-label": column.name });
    const caption = make("figcaption", { textContent: column.name + ", " + form });
    cards.append(make("figure", { className: column.form }, [canvas, caption]));
    const values = arrays[column.array];
    if (column.form === "image") {
      putImage(canvas, values, values.shape, column.limits);
      canvas.style.maxWidth = Math.max(values.shape[1], 360 * values.shape[1] / values.shape[0]) + "px";
    } else {
      canvas.className = "lines";
      const stride = Math.ceil(column.shape[0] / values.shape[0]);
      const places = Array.from({ length: values.shape[0] }, function (_, place) { return place * stride; });
      redrawWith(function () {
        drawLines(canvas, places, values, values.shape[1], {});
      });
    }
  }
  if (table.rows.length) {
    root.append(table);
  }
}

function errorWidget(root, head) {
  root.append(make("p", { className: "error", textContent: head.title }));
}

const WIDGETS = {
  volume: volumeWidget, cloud: cloudWidget, stream: streamWidget, episode: episodeWidget, rows: rowsWidget,
  error: errorWidget,
};

// ---------------------------------------------------------------------------------------------- samples

function start() {
  const block = document.getElementById("samples");
  const viewer = document.getElementById("viewer");
  if (!block || !viewer) {
    return;
  }
  const data = JSON.parse(block.textContent);
  const picks = make("div", { className: "picks", role: "group", "aria-label": "samples" });
  const title = make("p", { className: "title" });
  const stage = make("div");
  let request = new AbortController();
  const buttons = data.samples.map(function (sample) {
    const element = button(sample.caption, function () {
      show(sample);
    });
    picks.append(element);
    return element;
  });
  if (data.samples.length > 1 || data.live) {
    viewer.append(picks);
  }
  viewer.append(title, stage);
  if (data.live) {
    picks.after(numberControl());
  }
  show(data.samples[0]);

  let timer = null;
  window.addEventListener("resize", function () {
    clearTimeout(timer);
    timer = setTimeout(redrawAll, 100);
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);

  function redrawAll() {
    redraws.forEach(function (draw) { draw(); });
  }

  // Any sample by its number
  function numberControl() {
    const input = make("input", { type: "number" });
    input.min = 0;
    input.max = data.count - 1;
    input.value = data.samples[0].number;
    function go(number) {
      const sample = clamp(Math.round(number) || 0, 0, data.count - 1);
      input.value = sample;
      show({ number: sample, caption: data.noun + " " + formatNumber(sample) });
    }
    input.addEventListener("change", function () { go(Number(input.value)); });
    const label = make("label", {}, [make("span", { textContent: data.noun }), input]);
    const of = make("span", { textContent: "of " + formatNumber(data.count) });
    return controls([
      label, of,
      button("previous", function () { go(Number(input.value) - 1); }),
      button("next", function () { go(Number(input.value) + 1); }),
    ]);
  }

  async function show(sample) {
    // The server does not read what nobody waits for
    request.abort();
    request = new AbortController();
    const signal = request.signal;
    stopPlaying();
    buttons.forEach(function (element, place) {
      element.setAttribute("aria-pressed", data.samples[place].number === sample.number);
    });
    let view = null;
    try {
      view = unpack(data.live ? await received(sample.number, signal) : await inflate(sample.data));
    } catch (error) {
      view = { head: { widget: "error", title: "The sample cannot be shown: " + error.message }, arrays: {} };
    }
    // Another sample may have been asked for in the meantime
    if (signal.aborted) {
      return;
    }
    redraws = [];
    const isPicked = data.samples.length > 1 && data.samples.some(function (one) {
      return one.number === sample.number;
    });
    const facts = [view.head.title, view.head.note].filter(Boolean).join("; ");
    title.replaceChildren(isPicked ? "" : sample.caption + ": ", make("small", { textContent: facts }));
    if (view.head.widget === "error") {
      title.replaceChildren();
    }
    stage.replaceChildren();
    WIDGETS[view.head.widget](stage, view.head, view.arrays);
    stage.setAttribute("data-shown", sample.number);
  }

  async function received(number, signal) {
    const response = await fetch("samples/" + number, { signal: signal });
    if (!response.ok) {
      throw new Error("the server answers " + response.status);
    }
    return response.arrayBuffer();
  }
}

start();
}());
