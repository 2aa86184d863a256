/** The cloud by WebGL: four draw calls a frame, whatever the number of tokens. The library counts vertices by `position`. */

import {
  BufferAttribute, BufferGeometry, Camera, CanvasTexture, DynamicDrawUsage, InstancedBufferAttribute, InstancedBufferGeometry, LinearFilter, LineSegments,
  Matrix4, Mesh, RawShaderMaterial, Scene as World, Vector2, Color, WebGLRenderer, GLSL3,
} from 'three'

import { rgb } from '../palette'
import { lensOf, project, times, viewOf, type Eye } from './camera'
import { bow, OF_ARCS, type Scene } from './frame'
import { barbs } from './strokes'
import { axisLines, labelled, placed, RADIUS, strength, type Hand, type Sheet } from './hand'
import { sheetOf, type Sheet as Words } from './words'

const HEAD = `precision highp float; uniform mat4 m; uniform vec2 screen; uniform float far;`

const DOT_VERTEX = `${HEAD}
in vec2 position; in vec3 place; in vec3 colour; in vec3 look; out vec2 p; out vec3 c; out vec2 l;
void main() { p = position; c = colour; l = look.yz; vec4 at = m * vec4(place, 1.0);
  float size = look.x * clamp(far / at.w, 0.6, 1.7);
  at.xy += position * size * 2.0 / screen * at.w; gl_Position = at; }`
const DOT_FRAGMENT = `precision highp float; in vec2 p; in vec3 c; in vec2 l; out vec4 result; uniform vec3 paper;
float star(vec2 q) { float a = atan(q.x, q.y), k = 1.2566371; float t = mod(a + k * 0.5, k) - k * 0.5; vec2 r = length(q) * vec2(cos(t), abs(sin(t)));
  vec2 tip = vec2(1.0, 0.0), dent = 0.42 * vec2(cos(k * 0.5), sin(k * 0.5)); vec2 e = dent - tip; vec2 w = r - tip; return (e.x * w.y - e.y * w.x) / length(e); }
void main() { float r = length(p); float edge = fwidth(r); float a; vec3 shown = c;
  if (l.y > 1.5) { float s = star(p); a = smoothstep(-edge, edge, s); shown = mix(paper, c, smoothstep(0.04, 0.04 + 2.0 * edge, s)); }
  else if (l.y > 0.5) a = smoothstep(1.0, 1.0 - edge, r) * smoothstep(0.62 - edge, 0.62, r);
  else { a = smoothstep(1.0, 1.0 - edge, r); shown = mix(c, paper, smoothstep(0.76 - edge, 0.76, r)); }
  a *= l.x; if (a < 0.02) discard; result = vec4(shown, a); }`

const TRAIL_VERTEX = `${HEAD} in vec3 position; in vec3 colour; in vec2 moment; out float s; out vec3 c; out float a;
void main() { s = moment.x; a = moment.y; c = colour; gl_Position = m * vec4(position, 1.0); }`
const TRAIL_FRAGMENT = `precision highp float; in float s; in vec3 c; in float a; out vec4 result; uniform float at;
void main() { if (s > at) discard; result = vec4(c, a * mix(0.1, 0.6, exp((s - at) * 0.4))); }`

const LINE_VERTEX = `${HEAD} in vec3 position; in vec4 colour; out vec4 c; void main() { c = colour; gl_Position = m * vec4(position, 1.0); }`
const LINE_FRAGMENT = `precision highp float; in vec4 c; out vec4 result; void main() { result = c; }`

const WORD_VERTEX = `${HEAD} in vec2 position; in vec3 place; in vec4 box; in vec4 cut; in vec4 colour; out vec2 uv; out vec4 c;
void main() { c = colour; uv = cut.xy + (position * vec2(0.5, -0.5) + 0.5) * cut.zw; vec4 at = m * vec4(place, 1.0);
  vec2 pixel = box.xy + (position * 0.5 + 0.5) * box.zw; vec2 origin = (at.xy / at.w * 0.5 + 0.5) * screen;
  at.xy = ((origin + pixel) / screen * 2.0 - 1.0) * at.w; at.z = -0.99 * at.w; gl_Position = at; }`
const WORD_FRAGMENT = `precision highp float; in vec2 uv; in vec4 c; out vec4 result; uniform sampler2D sheet; uniform vec3 paper;
void main() { vec4 t = texture(sheet, uv); if (t.a < 0.02) discard; result = vec4(mix(paper, c.rgb, t.r), t.a * c.a); }`

const QUAD = new Float32Array([-1, -1, 1, -1, 1, 1, -1, -1, 1, 1, -1, 1])

/** Instances of a quad with named attributes that grow when they must. */
class Quads {
  readonly geometry = new InstancedBufferGeometry()
  private room = 0
  constructor(private readonly sizes: Record<string, number>) {
    this.geometry.setAttribute('position', new BufferAttribute(QUAD, 2))
  }
  array(name: string): Float32Array { return this.geometry.getAttribute(name).array as Float32Array }
  grow(count: number): void {
    if (count <= this.room) return
    this.room = Math.ceil(count * 1.3)
    this.geometry.dispose() // else the buffers stay, and the count of the first ones
    for (const [name, size] of Object.entries(this.sizes)) {
      const attribute = new InstancedBufferAttribute(new Float32Array(this.room * size), size)
      attribute.setUsage(DynamicDrawUsage)
      this.geometry.setAttribute(name, attribute)
    }
  }
  show(count: number): void {
    this.geometry.instanceCount = count
    for (const name of Object.keys(this.sizes)) this.geometry.getAttribute(name).needsUpdate = true
  }
}

/** Line segments gathered anew each frame, in buffers that stay. */
class Strokes {
  readonly geometry = new BufferGeometry()
  private place = new Float32Array(0)
  private colour = new Float32Array(0)
  private count = 0
  begin(most: number): void {
    this.count = 0
    if (most * 6 <= this.place.length) return
    this.geometry.dispose()
    this.place = new Float32Array(most * 6)
    this.colour = new Float32Array(most * 8)
    this.geometry.setAttribute('position', new BufferAttribute(this.place, 3).setUsage(DynamicDrawUsage))
    this.geometry.setAttribute('colour', new BufferAttribute(this.colour, 4).setUsage(DynamicDrawUsage))
  }
  line(a: ArrayLike<number>, b: ArrayLike<number>, tint: number[], alpha: number): void {
    for (const end of [a, b]) {
      for (let k = 0; k < 3; k++) {
        this.place[this.count * 3 + k] = end[k]!
        this.colour[this.count * 4 + k] = tint[k]! / 255
      }
      this.colour[this.count * 4 + 3] = alpha
      this.count++
    }
  }
  show(): void {
    this.geometry.setDrawRange(0, this.count)
    for (const name of ['position', 'colour']) this.geometry.getAttribute(name).needsUpdate = true
  }
}

export class Gl implements Hand {
  private readonly renderer: WebGLRenderer
  private readonly world = new World()
  private readonly camera = new Camera()
  private readonly uniforms = {
    m: { value: new Matrix4() }, screen: { value: new Vector2(1, 1) }, far: { value: 3 }, at: { value: 0 }, paper: { value: new Color(1, 1, 1) },
    sheet: { value: null as CanvasTexture | null },
  }
  private readonly dots = new Quads({ place: 3, colour: 3, look: 3 })
  private readonly words = new Quads({ place: 3, box: 4, cut: 4, colour: 4 })
  private readonly trails = new BufferGeometry()
  private readonly strokes = new Strokes()
  private readonly trailLines: LineSegments
  private cut: Words | null = null
  private cutFor: unknown[] = []
  private trailsFor: unknown[] = []
  private readonly size = new Vector2()

  constructor(canvas: HTMLCanvasElement, context: WebGL2RenderingContext) {
    this.renderer = new WebGLRenderer({ canvas, context })
    this.renderer.outputColorSpace = 'srgb-linear'
    this.renderer.sortObjects = false // they are added in the order in which they are drawn
    this.camera.matrixWorldAutoUpdate = this.world.matrixWorldAutoUpdate = false
    const put = (kind: 'mesh' | 'lines', geometry: BufferGeometry, vertexShader: string, fragmentShader: string, depthWrite: boolean) => {
      const material = new RawShaderMaterial({ uniforms: this.uniforms, vertexShader, fragmentShader, glslVersion: GLSL3, transparent: true, depthWrite })
      const thing = kind === 'mesh' ? new Mesh(geometry, material) : new LineSegments(geometry, material)
      thing.frustumCulled = false
      this.world.add(thing)
      return thing
    }
    put('lines', this.strokes.geometry, LINE_VERTEX, LINE_FRAGMENT, false)
    this.trailLines = put('lines', this.trails, TRAIL_VERTEX, TRAIL_FRAGMENT, false) as LineSegments
    put('mesh', this.dots.geometry, DOT_VERTEX, DOT_FRAGMENT, true)
    put('mesh', this.words.geometry, WORD_VERTEX, WORD_FRAGMENT, false)
  }

  draw(scene: Scene, eye: Eye, sheet: Sheet): void {
    this.fit(sheet)
    const { m, screen, far, at, paper } = this.uniforms
    m.value.fromArray(times(lensOf(sheet.width / sheet.height), viewOf(eye)))
    screen.value.set(sheet.width, sheet.height)
    far.value = eye.distance
    at.value = scene.at
    paper.value.setRGB(...(rgb(sheet.theme.paper).map((x) => x / 255) as [number, number, number]))
    this.cutWords(scene, sheet)
    this.putTrails(scene)
    const now = placed(scene, eye, sheet)
    this.putDots(scene, now.places)
    this.putLines(scene, now.places, eye, sheet)
    this.putWords(scene, now, eye, sheet)
    this.renderer.render(this.world, this.camera)
  }

  /** A canvas that gets its size again is cleared and made anew, which costs more than all else. */
  private fit({ width, height, ratio }: Sheet): void {
    if (this.renderer.getPixelRatio() !== ratio) this.renderer.setPixelRatio(ratio)
    const { x, y } = this.renderer.getSize(this.size)
    if (x !== width || y !== height) this.renderer.setSize(width, height, false)
  }

  private cutWords(scene: Scene, sheet: Sheet): void {
    const same = [scene.labels, scene.axes.join(), scene.starLabel, sheet.ratio]
    if (same.every((one, at) => one === this.cutFor[at])) return
    this.cut = sheetOf([...scene.labels, ...scene.axes, scene.starLabel], sheet.ratio)
    this.cutFor = same
    this.uniforms.sheet.value?.dispose()
    const texture = new CanvasTexture(this.cut.canvas)
    texture.flipY = false
    texture.generateMipmaps = false
    texture.minFilter = texture.magFilter = LinearFilter
    this.uniforms.sheet.value = texture
  }

  private putTrails(scene: Scene): void {
    const bright = [...scene.bright].join()
    const faint = scene.arcs.length || scene.strokes.length ? 0.35 : 1
    const same = [scene.all, scene.colours, bright, scene.shown, faint]
    this.trailLines.visible = scene.trails
    if (!scene.trails || same.every((one, at) => one === this.trailsFor[at])) return
    this.trailsFor = same
    const steps = scene.all.length / (scene.tokens * 3)
    const count = Math.max(0, steps - 1) * scene.tokens * 2
    const [place, colour, moment] = [new Float32Array(count * 3), new Float32Array(count * 3), new Float32Array(count * 2)]
    let at = 0
    for (let step = 0; step + 1 < steps; step++)
      for (let token = 0; token < scene.tokens; token++)
        for (const end of [0, 1]) {
          const from = ((step + end) * scene.tokens + token) * 3
          for (let k = 0; k < 3; k++) {
            place[at * 3 + k] = scene.all[from + k]!
            colour[at * 3 + k] = scene.colours[token * 3 + k]! / 255
          }
          moment[at * 2] = step + end
          moment[at * 2 + 1] = faint * strength(scene, token)
          at++
        }
    this.trails.dispose()
    this.trails.setAttribute('position', new BufferAttribute(place, 3))
    this.trails.setAttribute('colour', new BufferAttribute(colour, 3))
    this.trails.setAttribute('moment', new BufferAttribute(moment, 2))
  }

  private putDots(scene: Scene, places: Float32Array): void {
    const beside = scene.beside ? scene.besideTokens : 0
    const total = scene.tokens + beside + 1
    this.dots.grow(total)
    const [place, colour, look] = [this.dots.array('place'), this.dots.array('colour'), this.dots.array('look')]
    let at = 0
    const put = (from: ArrayLike<number>, start: number, tint: [number, number, number], size: number, alpha: number, kind: number) => {
      for (let k = 0; k < 3; k++) {
        place[at * 3 + k] = from[start + k]!
        colour[at * 3 + k] = tint[k]! / 255
      }
      look.set([size, alpha, kind], at * 3)
      at++
    }
    for (let token = 0; token < scene.tokens; token++) {
      const c = scene.colours
      const alpha = strength(scene, token)
      if (alpha > 0) put(places, token * 3, [c[token * 3]!, c[token * 3 + 1]!, c[token * 3 + 2]!], scene.bright.has(token) ? RADIUS * 1.5 : RADIUS * 1.15, alpha, 0)
    }
    for (let token = 0; token < beside; token++) put(scene.beside!, token * 3, rgb('#8a93a6'), RADIUS * 1.25, scene.bright.size && !scene.bright.has(token) ? 0.15 : 0.8, 1)
    if (scene.star) put(scene.star, 0, rgb('#d9622b'), 11, 1, 2)
    this.dots.show(at)
  }

  private putLines(scene: Scene, places: Float32Array, eye: Eye, sheet: Sheet): void {
    const { strokes } = this
    strokes.begin(3 + scene.arcs.length * 12 + scene.strokes.length * 3 + (scene.beside ? scene.tokens : 0))
    const muted = rgb(sheet.theme.muted)
    for (const one of axisLines(eye, sheet)) strokes.line(one.slice(0, 3), one.slice(3), muted, 0.7)
    const [more, less] = [rgb(OF_ARCS.more), rgb(OF_ARCS.less)]
    const top = Math.abs(scene.arcs[0]?.weight ?? 1)
    for (const { from, to, weight } of scene.arcs) {
      const points = bow(places.subarray(from * 3, from * 3 + 3), places.subarray(to * 3, to * 3 + 3))
      for (let k = 1; k < points.length; k++) strokes.line(points[k - 1]!, points[k]!, weight > 0 ? more : less, 0.08 + 0.8 * (Math.abs(weight) / top))
    }
    for (const one of scene.strokes) {
      const alpha = 0.85 * strength(scene, one.token)
      const tint = rgb(one.colour)
      if (alpha === 0) continue
      strokes.line(one.from, one.to, tint, alpha)
      if (one.barbed) for (const end of barbs(one, eye)) strokes.line(one.to, end, tint, alpha)
    }
    if (scene.beside && scene.besideTokens === scene.tokens)
      for (let token = 0; token < scene.tokens; token++) strokes.line(scene.beside.subarray(token * 3, token * 3 + 3), places.subarray(token * 3, token * 3 + 3), muted, strength(scene, token) * 0.4)
    strokes.show()
  }

  private putWords(scene: Scene, now: ReturnType<typeof placed>, eye: Eye, sheet: Sheet): void {
    const { cuts, canvas, ratio } = this.cut!
    const kept = labelled(scene, now, sheet, (text) => cuts.get(text))
    this.words.grow(kept.length + 4)
    const [place, box, cut, colour] = ['place', 'box', 'cut', 'colour'].map((name) => this.words.array(name)) as [Float32Array, Float32Array, Float32Array, Float32Array]
    const [ink, muted] = [rgb(sheet.theme.ink), rgb(sheet.theme.muted)]
    let at = 0
    const put = (text: string, from: ArrayLike<number>, start: number, dx: number, tint: number[], alpha: number) => {
      const found = cuts.get(text)
      if (!found) return
      for (let k = 0; k < 3; k++) place[at * 3 + k] = from[start + k]!
      box.set([dx, -found.height / 2, found.width, found.height], at * 4)
      cut.set([(found.u * ratio) / canvas.width, (found.v * ratio) / canvas.height, (found.width * ratio) / canvas.width, (found.height * ratio) / canvas.height], at * 4)
      colour.set([tint[0]! / 255, tint[1]! / 255, tint[2]! / 255, alpha], at * 4)
      at++
    }
    for (const { token } of kept) put(scene.labels[token]!, now.places, token * 3, RADIUS + 1, ink, Math.max(strength(scene, token), 0.3))
    axisLines(eye, sheet).forEach((one, k) => {
      const ends = project(Float32Array.from(one), eye, sheet.width, sheet.height)
      const text = scene.axes[k]
      if (text) put(text, one, 3, ends[3]! < ends[0]! ? -(cuts.get(text)?.width ?? 0) - 2 : 2, muted, 1)
    })
    if (scene.star) put(scene.starLabel, scene.star, 0, 11, ink, 1)
    this.words.show(at)
  }

  dispose(): void {
    this.uniforms.sheet.value?.dispose()
    for (const one of [this.trails, this.strokes.geometry, this.dots.geometry, this.words.geometry]) one.dispose()
    this.renderer.dispose()
  }
}
