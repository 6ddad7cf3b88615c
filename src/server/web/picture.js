// Draws the KV cache on a canvas: context along x, layers along y. Cells that the last step read are lit, cells of earlier
// steps fade. A pixel of the small image is one column of one layer; the canvas enlarges it without smoothing.

const FADE_MS = 900;    // time until a cell that is no longer read is dark
const REST = 0.62;      // brightness of the last step's cells when no further step follows
const FRAME_MS = 33;
const GAMMA = 0.7;      // makes a column of which a tenth was read visible beside one that was read whole

export class Picture {
  #canvas; #context;
  #cells = document.createElement('canvas');
  #image = null;         // ImageData, columns x layers
  #heat = new Float32Array(0);  // [layers][columns], 0…1: current brightness
  #last = new Float32Array(0);  // the same for the last step
  #columns = 0; #layers = 0;
  #shownAt = 0; #drawnAt = 0; #frame = 0;
  #still = matchMedia('(prefers-reduced-motion: reduce)');
  #colours = null;

  constructor(canvas) {
    this.#canvas = canvas;
    this.#context = canvas.getContext('2d');
    new ResizeObserver(() => this.#resize()).observe(canvas);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { this.#colours = null; this.#schedule(); });
    this.#resize();
  }

  // layers: [layers][columns], 0…255: share of a column's rows that the step read.
  show(layers) {
    const columns = layers[0].length;
    if (columns !== this.#columns || layers.length !== this.#layers) this.#reshape(columns, layers.length);
    this.#fade(performance.now());
    for (let y = 0, i = 0; y < layers.length; ++y)
      for (let x = 0; x < columns; ++x, ++i) {
        this.#last[i] = layers[y][x] > 0 ? Math.pow(Math.min(layers[y][x], 255) / 255, GAMMA) : 0;
        this.#heat[i] = this.#still.matches ? this.#last[i] : Math.max(this.#heat[i], this.#last[i]);
      }
    this.#shownAt = performance.now();
    this.#schedule();
  }

  clear() {
    this.#columns = this.#layers = 0;
    this.#schedule();
  }

  // When the context grows, columns change; the brightness keeps its position in the text.
  #reshape(columns, layers) {
    const heat = new Float32Array(columns * layers);
    if (layers === this.#layers)
      for (let y = 0; y < layers; ++y)
        for (let x = 0; x < columns; ++x)
          heat[y * columns + x] = this.#heat[y * this.#columns + Math.floor((x * this.#columns) / columns)];
    [this.#heat, this.#last] = [heat, new Float32Array(heat.length)];
    [this.#columns, this.#layers] = [columns, layers];
    [this.#cells.width, this.#cells.height] = [columns, layers];
    this.#image = this.#cells.getContext('2d').createImageData(columns, layers);
  }

  #resize() {
    const scale = Math.min(window.devicePixelRatio || 1, 2);
    this.#canvas.width = Math.max(1, Math.round(this.#canvas.clientWidth * scale));
    this.#canvas.height = Math.max(1, Math.round(this.#canvas.clientHeight * scale));
    this.#draw();
  }

  #schedule() {
    if (!this.#frame) this.#frame = requestAnimationFrame((now) => this.#tick(now));
  }

  #tick(now) {
    this.#frame = 0;
    if (now - this.#drawnAt < FRAME_MS) return this.#schedule();
    this.#fade(now);
    this.#draw();
    if (!this.#still.matches && this.#columns && now - this.#shownAt < 3 * FADE_MS) this.#schedule();
  }

  #fade(now) {
    const passed = Math.min(now - this.#drawnAt, FADE_MS);
    this.#drawnAt = now;
    if (this.#still.matches) return;
    const factor = Math.exp((-3 * passed) / FADE_MS);
    for (let i = 0; i < this.#heat.length; ++i) {
      const floor = REST * this.#last[i];
      this.#heat[i] = floor + Math.max(0, this.#heat[i] - floor) * factor;
    }
  }

  // Colours come from the style sheet, so that dark and light mode are defined in one place.
  #palette() {
    const style = getComputedStyle(this.#canvas);
    const colour = (name) => [1, 3, 5].map((i) => parseInt(style.getPropertyValue(name).trim().slice(i, i + 2), 16));
    const stops = ['--cell', '--warm', '--lit', '--hot'].map(colour);
    const ramp = new Uint8ClampedArray(256 * 3);
    for (let v = 0; v < 256; ++v) {
      const at = (v / 255) * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
      for (let c = 0; c < 3; ++c) ramp[v * 3 + c] = stops[low][c] + (stops[low + 1][c] - stops[low][c]) * (at - low);
    }
    return { ramp, cell: style.getPropertyValue('--cell'), now: style.getPropertyValue('--now') };
  }

  #draw() {
    const { width, height } = this.#canvas;
    const context = this.#context;
    this.#colours ??= this.#palette();
    context.clearRect(0, 0, width, height);
    if (!this.#columns) {
      context.fillStyle = this.#colours.cell;
      for (let y = 0; y < 12; ++y) context.fillRect(0, Math.round((y * height) / 12), width, Math.ceil(height / 12) - 2);
      return;
    }
    const pixels = this.#image.data, { ramp } = this.#colours;
    for (let i = 0; i < this.#heat.length; ++i) {
      const v = Math.min(255, Math.round(this.#heat[i] * 255)) * 3;
      pixels[4 * i] = ramp[v];
      pixels[4 * i + 1] = ramp[v + 1];
      pixels[4 * i + 2] = ramp[v + 2];
      pixels[4 * i + 3] = 255;
    }
    this.#cells.getContext('2d').putImageData(this.#image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.#cells, 0, 0, width, height);
    // Gaps separate the cells, if there is room for them.
    const dx = width / this.#columns, dy = height / this.#layers;
    if (dy >= 4) for (let y = 1; y < this.#layers; ++y) context.clearRect(0, Math.round(y * dy) - 1, width, dy >= 10 ? 2 : 1);
    if (dx >= 4) for (let x = 1; x < this.#columns; ++x) context.clearRect(Math.round(x * dx) - 1, 0, 1, height);
    context.fillStyle = this.#colours.now;
    context.fillRect(width - 3, 0, 3, height);
  }
}
