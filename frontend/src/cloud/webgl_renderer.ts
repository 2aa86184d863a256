/** Draws the cloud with WebGL, in four draw calls per frame. */

import { Geometry, Program, Renderer as Gl, Texture, type AttributeMap, type OGLRenderingContext } from 'ogl'

import { rgb } from '../palette'
import { arrowTip } from './arrows'
import { multiply, projectionMatrix, projector, viewMatrix, type Camera } from './camera'
import { axisSegments, ghostSegments, GHOST_OPACITY, pathOffsets, PATH_OPACITY, projectScene, RADIUS, RING_RADIUS, shownPredicting, STEP_RADIUS, tokenOpacity, type ProjectedScene, type Renderer, type Viewport } from './renderer'
import { labelColour, visibleLabels } from './labels'
import { ARC_COLOURS, arcPoints, type Scene } from './scene'
import { buildAtlas, type TextAtlas } from './text_atlas'

const UNIFORMS = `#version 300 es
precision highp float; uniform mat4 m; uniform vec2 screen; uniform float cameraDistance;`

const DOT_VERTEX = `${UNIFORMS}
in vec2 position; in vec3 point; in vec3 colour; in vec3 style; out vec2 p; out vec3 c; out vec2 l;
void main() { p = position; c = colour; l = style.yz; vec4 clip = m * vec4(point, 1.0);
  float size = style.x * clamp(cameraDistance / clip.w, 0.6, 1.7);
  clip.xy += position * size * 2.0 / screen * clip.w; gl_Position = clip; }`
const DOT_FRAGMENT = `#version 300 es
precision highp float; in vec2 p; in vec3 c; in vec2 l; out vec4 result; uniform vec3 paper;
float star(vec2 q) { float a = atan(q.x, q.y), k = 1.2566371; float t = mod(a + k * 0.5, k) - k * 0.5; vec2 r = length(q) * vec2(cos(t), abs(sin(t)));
  vec2 tip = vec2(1.0, 0.0), dent = 0.42 * vec2(cos(k * 0.5), sin(k * 0.5)); vec2 e = dent - tip; vec2 w = r - tip; return (e.x * w.y - e.y * w.x) / length(e); }
void main() { float r = length(p); float edge = fwidth(r); float a; vec3 tint = c;
  if (l.y > 1.5) { float s = star(p); a = smoothstep(-edge, edge, s); tint = mix(paper, c, smoothstep(0.04, 0.04 + 2.0 * edge, s)); }
  else if (l.y > 0.5) a = smoothstep(1.0, 1.0 - edge, r) * smoothstep(0.62 - edge, 0.62, r);
  else { a = smoothstep(1.0, 1.0 - edge, r); tint = mix(c, paper, smoothstep(0.76 - edge, 0.76, r)); }
  a *= l.x; if (a < 0.02) discard; result = vec4(tint, a); }`

const TRAIL_VERTEX = `${UNIFORMS} in vec3 position; in vec3 colour; in vec3 stepStyle; out float s; out vec3 c; out float a; out float fades;
void main() { s = stepStyle.x; a = stepStyle.y; fades = stepStyle.z; c = colour; gl_Position = m * vec4(position, 1.0); }`
const TRAIL_FRAGMENT = `#version 300 es
precision highp float; in float s; in vec3 c; in float a; in float fades; out vec4 result; uniform float playhead;
void main() { if (s > playhead) discard; result = vec4(c, a * mix(1.0, mix(0.1, 0.6, exp((s - playhead) * 0.4)), fades)); }`

const LINE_VERTEX = `${UNIFORMS} in vec3 position; in vec4 colour; out vec4 c; void main() { c = colour; gl_Position = m * vec4(position, 1.0); }`
const LINE_FRAGMENT = `#version 300 es
precision highp float; in vec4 c; out vec4 result; void main() { result = c; }`

const LABEL_VERTEX = `${UNIFORMS} in vec2 position; in vec3 point; in vec4 box; in vec4 uvBox; in vec4 colour; out vec2 uv; out vec4 c;
void main() { c = colour; uv = uvBox.xy + (position * vec2(0.5, -0.5) + 0.5) * uvBox.zw; vec4 clip = m * vec4(point, 1.0);
  vec2 pixel = box.xy + (position * 0.5 + 0.5) * box.zw; vec2 origin = (clip.xy / clip.w * 0.5 + 0.5) * screen;
  clip.xy = ((origin + pixel) / screen * 2.0 - 1.0) * clip.w; clip.z = -0.99 * clip.w; gl_Position = clip; }`
const LABEL_FRAGMENT = `#version 300 es
precision highp float; in vec2 uv; in vec4 c; out vec4 result; uniform sampler2D atlas; uniform vec3 paper;
void main() { vec4 t = texture(atlas, uv); if (t.a < 0.02) discard; result = vec4(mix(paper, c.rgb, t.r), t.a * c.a); }`

const QUAD = new Float32Array([-1, -1, 1, -1, 1, 1, -1, -1, 1, 1, -1, 1])

/** A buffer of one draw call: an attribute of floats, several per vertex or per instance. */
const attribute = (data: Float32Array, size: number, usage: number, instanced: number | null = null) => ({ data, size, usage, instanced })

/** Instances of a quad. The buffers of their attributes grow as needed. */
class Quads {
  geometry: Geometry
  private capacity = 0
  constructor(private readonly gl: OGLRenderingContext, private readonly sizes: Record<string, number>) { this.geometry = new Geometry(gl) }
  array(name: string): Float32Array { return this.geometry.attributes[name]!.data as Float32Array }
  grow(count: number): void {
    if (count <= this.capacity) return
    this.capacity = Math.ceil(count * 1.3)
    this.geometry.remove()
    const attributes: AttributeMap = { position: attribute(QUAD, 2, this.gl.STATIC_DRAW) }
    for (const [name, size] of Object.entries(this.sizes)) attributes[name] = attribute(new Float32Array(this.capacity * size), size, this.gl.DYNAMIC_DRAW, 1)
    this.geometry = new Geometry(this.gl, attributes)
  }
  show(count: number): void {
    this.geometry.setInstancedCount(count)
    for (const name of Object.keys(this.sizes)) this.geometry.attributes[name]!.needsUpdate = true
  }
}

/** Line segments, written anew each frame into the same buffers. */
class LineBuffer {
  geometry: Geometry
  private points = new Float32Array(0)
  private colour = new Float32Array(0)
  private count = 0
  constructor(private readonly gl: OGLRenderingContext) { this.geometry = new Geometry(gl) }
  begin(maxSegments: number): void {
    this.count = 0
    if (maxSegments * 6 <= this.points.length) return
    this.geometry.remove()
    this.points = new Float32Array(maxSegments * 6)
    this.colour = new Float32Array(maxSegments * 8)
    this.geometry = new Geometry(this.gl, { position: attribute(this.points, 3, this.gl.DYNAMIC_DRAW), colour: attribute(this.colour, 4, this.gl.DYNAMIC_DRAW) })
  }
  line(a: ArrayLike<number>, b: ArrayLike<number>, colour: number[], alpha: number): void {
    for (const end of [a, b]) {
      for (let k = 0; k < 3; k++) {
        this.points[this.count * 3 + k] = end[k]!
        this.colour[this.count * 4 + k] = colour[k]! / 255
      }
      this.colour[this.count * 4 + 3] = alpha
      this.count++
    }
  }
  show(): void {
    this.geometry.setDrawRange(0, this.count)
    for (const name of ['position', 'colour']) this.geometry.attributes[name]!.needsUpdate = true
  }
}

/** One draw call. Its geometry is replaced when its buffers grow. */
interface DrawCall { program: Program; mode: number; geometry: () => Geometry }

export class WebGlRenderer implements Renderer {
  private readonly gl: OGLRenderingContext
  private readonly uniforms
  private readonly dots: Quads
  private readonly labels: Quads
  private readonly lineBuffer: LineBuffer
  private readonly drawCalls: DrawCall[]
  private trails: Geometry
  private atlas: TextAtlas | null = null
  private atlasInputs: unknown[] = []
  private trailInputs: unknown[] = []

  constructor(private readonly canvas: HTMLCanvasElement) {
    const gl = (this.gl = new Gl({ canvas, alpha: true, antialias: true, premultipliedAlpha: true }).gl)
    canvas.style.width = canvas.style.height = '' // the page sets the size of the canvas
    const atlas = new Texture(gl, { generateMipmaps: false, flipY: false })
    this.uniforms = { m: { value: new Float32Array(16) }, screen: { value: [1, 1] }, cameraDistance: { value: 3 }, playhead: { value: 0 }, paper: { value: [1, 1, 1] }, atlas: { value: atlas } }
    this.dots = new Quads(gl, { point: 3, colour: 3, style: 3 })
    this.labels = new Quads(gl, { point: 3, box: 4, uvBox: 4, colour: 4 })
    this.lineBuffer = new LineBuffer(gl)
    this.trails = new Geometry(gl)
    const drawCall = (mode: number, geometry: () => Geometry, vertex: string, fragment: string, depthWrite = false): DrawCall => {
      const program = new Program(gl, { vertex, fragment, uniforms: this.uniforms, cullFace: false, depthWrite })
      program.setBlendFunc(gl.SRC_ALPHA, gl.ONE_MINUS_SRC_ALPHA, gl.ONE, gl.ONE_MINUS_SRC_ALPHA)
      return { program, mode, geometry }
    }
    this.drawCalls = [
      drawCall(gl.LINES, () => this.lineBuffer.geometry, LINE_VERTEX, LINE_FRAGMENT),
      drawCall(gl.LINES, () => this.trails, TRAIL_VERTEX, TRAIL_FRAGMENT),
      drawCall(gl.TRIANGLES, () => this.dots.geometry, DOT_VERTEX, DOT_FRAGMENT, true),
      drawCall(gl.TRIANGLES, () => this.labels.geometry, LABEL_VERTEX, LABEL_FRAGMENT),
    ]
  }

  draw(scene: Scene, camera: Camera, viewport: Viewport): void {
    this.resize(viewport)
    const { m, screen, cameraDistance, playhead, paper } = this.uniforms
    m.value.set(multiply(projectionMatrix(viewport.width / viewport.height), viewMatrix(camera)))
    screen.value = [viewport.width, viewport.height]
    cameraDistance.value = camera.distance
    playhead.value = scene.playhead
    paper.value = rgb(viewport.theme.paper).map((x) => x / 255)
    this.updateAtlas(scene, viewport)
    this.updateTrails(scene, rgb(viewport.theme.accent))
    const projected = projectScene(scene, camera, viewport)
    this.updateDots(scene, projected.points, viewport)
    this.updateLines(scene, projected.points, camera, viewport)
    this.updateLabels(scene, projected, camera, viewport)
    this.render()
  }

  private render(): void {
    const { gl } = this
    gl.renderer.setDepthMask(true)
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT)
    for (const { program, mode, geometry } of this.drawCalls) {
      program.use()
      geometry().draw({ program, mode })
    }
  }

  /** Setting the size of a canvas reallocates it, so it is set only when it changes. */
  private resize({ width, height, ratio }: Viewport): void {
    const [columns, rows] = [Math.floor(width * ratio), Math.floor(height * ratio)]
    if (this.canvas.width !== columns || this.canvas.height !== rows) [this.canvas.width, this.canvas.height] = [columns, rows]
    this.gl.renderer.setViewport(columns, rows)
  }

  private updateAtlas(scene: Scene, viewport: Viewport): void {
    const inputs = [scene.labels, scene.axes.join(), scene.starLabel, scene.pathWords, viewport.ratio]
    if (inputs.every((input, index) => input === this.atlasInputs[index])) return
    this.atlas = buildAtlas([scene.starLabel, ...scene.pathWords.map(({ text }) => text), ...scene.axes, ...scene.labels], viewport.ratio)
    this.atlasInputs = inputs
    this.uniforms.atlas.value.image = this.atlas.canvas
  }

  private updateTrails(scene: Scene, accent: number[]): void {
    const highlighted = [...scene.highlighted].join()
    const opacity = scene.arcs.length || scene.arrows.length ? 0.35 : 1
    const inputs = [scene.points, scene.colours, highlighted, scene.isShown, scene.hasTrail, scene.predicting, accent.join(), opacity]
    if (inputs.every((input, index) => input === this.trailInputs[index])) return
    this.trailInputs = inputs
    const steps = scene.points.length / (scene.tokens * 3)
    const shown = Array.from({ length: scene.tokens }, (_, token) => token).filter(scene.hasTrail)
    const count = Math.max(0, steps - 1) * shown.length * 2
    const [position, colour, stepStyle] = [new Float32Array(count * 3), new Float32Array(count * 3), new Float32Array(count * 3)]
    let vertex = 0
    for (let step = 0; step + 1 < steps; step++)
      for (const token of shown)
        for (const end of [0, 1]) {
          const from = ((step + end) * scene.tokens + token) * 3
          for (let k = 0; k < 3; k++) {
            position[vertex * 3 + k] = scene.points[from + k]!
            colour[vertex * 3 + k] = (token === scene.predicting ? accent[k]! : scene.colours[token * 3 + k]!) / 255
          }
          stepStyle.set(token === scene.predicting ? [step + end, PATH_OPACITY, 0] : [step + end, opacity * tokenOpacity(scene, token), 1], vertex * 3)
          vertex++
        }
    this.trails.remove()
    const buffer = (data: Float32Array) => attribute(data, 3, this.gl.STATIC_DRAW)
    this.trails = new Geometry(this.gl, { position: buffer(position), colour: buffer(colour), stepStyle: buffer(stepStyle) })
  }

  private updateDots(scene: Scene, points: Float32Array, viewport: Viewport): void {
    const comparisonTokens = scene.comparison ? scene.comparisonTokens : 0
    const [predicting, path, accent] = [shownPredicting(scene), pathOffsets(scene), rgb(viewport.theme.accent)]
    this.dots.grow(scene.tokens + comparisonTokens + path.length + 2)
    const [point, colour, style] = [this.dots.array('point'), this.dots.array('colour'), this.dots.array('style')]
    let count = 0
    const addDot = (from: ArrayLike<number>, start: number, dotColour: [number, number, number], size: number, alpha: number, kind: number) => {
      for (let k = 0; k < 3; k++) {
        point[count * 3 + k] = from[start + k]!
        colour[count * 3 + k] = dotColour[k]! / 255
      }
      style.set([size, alpha, kind], count * 3)
      count++
    }
    for (let token = 0; token < scene.tokens; token++) {
      const c = scene.colours
      const alpha = tokenOpacity(scene, token)
      if (alpha > 0) addDot(points, token * 3, [c[token * 3]!, c[token * 3 + 1]!, c[token * 3 + 2]!], scene.highlighted.has(token) ? RADIUS * 1.5 : RADIUS * 1.15, alpha, 0)
    }
    for (let token = 0; token < comparisonTokens; token++) addDot(scene.comparison!, token * 3, rgb('#8a93a6'), RADIUS * 1.25, scene.highlighted.size && !scene.highlighted.has(token) ? 0.15 : 0.8, 1)
    for (const offset of path) addDot(scene.points, offset, accent, STEP_RADIUS, 1, 0)
    if (predicting !== null) addDot(points, predicting * 3, accent, RING_RADIUS, 1, 1)
    if (scene.star) addDot(scene.star, 0, rgb('#d9622b'), 11, 1, 2)
    this.dots.show(count)
  }

  private updateLines(scene: Scene, points: Float32Array, camera: Camera, viewport: Viewport): void {
    const { lineBuffer } = this
    const ghost = ghostSegments(scene)
    lineBuffer.begin(3 + ghost.length + scene.arcs.length * 12 + scene.arrows.length * 3 + (scene.comparison ? scene.tokens : 0))
    const muted = rgb(viewport.theme.muted)
    for (const segment of axisSegments(camera, viewport)) lineBuffer.line(segment.slice(0, 3), segment.slice(3), muted, 0.7)
    for (const [start, end] of ghost) lineBuffer.line(start, end, muted, GHOST_OPACITY)
    const [positive, negative] = [rgb(ARC_COLOURS.positive), rgb(ARC_COLOURS.negative)]
    const largest = Math.abs(scene.arcs[0]?.weight ?? 1)
    for (const { from, to, weight } of scene.arcs) {
      const path = arcPoints(points.subarray(from * 3, from * 3 + 3), points.subarray(to * 3, to * 3 + 3))
      for (let k = 1; k < path.length; k++) lineBuffer.line(path[k - 1]!, path[k]!, weight > 0 ? positive : negative, 0.08 + 0.8 * (Math.abs(weight) / largest))
    }
    for (const arrow of scene.arrows) {
      const alpha = 0.85 * tokenOpacity(scene, arrow.token)
      const colour = rgb(arrow.colour)
      if (alpha === 0) continue
      lineBuffer.line(arrow.from, arrow.to, colour, alpha)
      for (const end of arrowTip(arrow, camera)) lineBuffer.line(arrow.to, end, colour, alpha)
    }
    if (scene.comparison && scene.comparisonTokens === scene.tokens)
      for (let token = 0; token < scene.tokens; token++) lineBuffer.line(scene.comparison.subarray(token * 3, token * 3 + 3), points.subarray(token * 3, token * 3 + 3), muted, tokenOpacity(scene, token) * 0.4)
    lineBuffer.show()
  }

  private updateLabels(scene: Scene, projected: ProjectedScene, camera: Camera, viewport: Viewport): void {
    const { entries, canvas, ratio } = this.atlas!
    const toPixels = projector(camera, viewport.width, viewport.height)
    const visible = visibleLabels(scene, projected, viewport, toPixels, (text) => entries.get(text))
    this.labels.grow(visible.length)
    const [point, box, uvBox, colour] = ['point', 'box', 'uvBox', 'colour'].map((name) => this.labels.array(name)) as [Float32Array, Float32Array, Float32Array, Float32Array]
    let count = 0
    const addLabel = (text: string, from: ArrayLike<number>, dx: number, drop: number, textColour: number[], alpha: number) => {
      const entry = entries.get(text)
      if (!entry) return
      for (let k = 0; k < 3; k++) point[count * 3 + k] = from[k]!
      box.set([dx, -drop - entry.height / 2, entry.width, entry.height], count * 4)
      uvBox.set([(entry.u * ratio) / canvas.width, (entry.v * ratio) / canvas.height, (entry.width * ratio) / canvas.width, (entry.height * ratio) / canvas.height], count * 4)
      colour.set([textColour[0]! / 255, textColour[1]! / 255, textColour[2]! / 255, alpha], count * 4)
      count++
    }
    for (const { text, kind, point, offset, drop, opacity } of visible) addLabel(text, point, offset, drop, rgb(labelColour(kind, viewport.theme)), opacity)
    this.labels.show(count)
  }

  dispose(): void {
    this.gl.deleteTexture(this.uniforms.atlas.value.texture)
    for (const { program, geometry } of this.drawCalls) {
      geometry().remove()
      program.remove()
    }
  }
}
