/** Draws the cloud on a 2D canvas, for browsers without a graphics card. */

import { css, rgb } from '../palette'
import { depthScale, projector, type Camera } from './camera'
import { labelColour, visibleLabels } from './labels'
import { arcControl, ARC_COLOURS, tokenPath, type Scene } from './scene'
import { arrowTip } from './arrows'
import { ghostSegments, GHOST_OPACITY, pathOffsets, PATH_OPACITY, projectScene, RADIUS, RING_RADIUS, shownPredicting, STEP_RADIUS, tokenOpacity, type ProjectedScene, type Renderer, type Viewport } from './renderer'
import { FONT, FONT_SIZE, MARGIN, textWidth } from './text_atlas'

export class CanvasRenderer implements Renderer {
  private readonly context: CanvasRenderingContext2D
  /** Text → its width in pixels. Measuring the same texts in every frame takes longer than placing them. */
  private readonly widths = new Map<string, number>()
  constructor(private readonly canvas: HTMLCanvasElement) {
    this.context = canvas.getContext('2d')!
  }

  draw(scene: Scene, camera: Camera, viewport: Viewport): void {
    const { context } = this
    this.clear(viewport)
    context.font = `500 ${FONT_SIZE}px ${FONT}`
    context.textBaseline = 'middle'
    const projected = projectScene(scene, camera, viewport)
    const toPixels = projector(camera, viewport.width, viewport.height)
    this.drawAxes(projected, viewport)
    this.drawTrails(scene, projected.screen, toPixels, viewport)
    this.drawArcs(scene, projected, toPixels)
    this.drawArrows(scene, toPixels, camera)
    if (scene.comparison) this.drawComparison(scene, projected.screen, toPixels)
    this.drawDots(scene, projected.screen, camera, viewport)
    this.drawRing(scene, projected.screen, viewport)
    if (scene.star) this.drawStar(scene, toPixels)
    for (const label of visibleLabels(scene, projected, viewport, toPixels, (text) => ({ width: this.widthOf(text), height: FONT_SIZE + 2 * MARGIN }))) {
      const [x, y] = toPixels(Float32Array.from(label.point))
      this.drawText(label.text, x! + label.offset + MARGIN, y! + label.drop, labelColour(label.kind, viewport.theme), viewport, label.opacity)
    }
    context.globalAlpha = 1
  }

  /** Setting the size of a canvas reallocates it, so it is set only when it changes. */
  private clear({ width, height, ratio }: Viewport): void {
    const [columns, rows] = [Math.floor(width * ratio), Math.floor(height * ratio)]
    if (this.canvas.width !== columns || this.canvas.height !== rows) [this.canvas.width, this.canvas.height] = [columns, rows]
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0)
    this.context.clearRect(0, 0, width, height)
  }

  private widthOf(text: string): number {
    if (!this.widths.has(text)) this.widths.set(text, textWidth(this.context, text))
    return this.widths.get(text)!
  }

  private drawText(text: string, x: number, y: number, colour: string, viewport: Viewport, alpha = 1): void {
    const { context } = this
    context.globalAlpha = alpha
    context.lineJoin = 'round'
    context.lineWidth = 3.5
    context.strokeStyle = viewport.theme.paper
    context.strokeText(text, x, y)
    context.fillStyle = colour
    context.fillText(text, x, y)
  }

  /** A line through points, given as pixel x, pixel y and depth. */
  private drawPath(pixels: ArrayLike<number>, colour: string, alpha: number): void {
    const { context } = this
    context.globalAlpha = alpha
    context.strokeStyle = colour
    context.lineWidth = 1
    context.beginPath()
    context.moveTo(pixels[0]!, pixels[1]!)
    for (let k = 3; k < pixels.length; k += 3) context.lineTo(pixels[k]!, pixels[k + 1]!)
    context.stroke()
  }

  private drawLine(x: number, y: number, endX: number, endY: number, colour: string, alpha: number): void {
    this.drawPath([x, y, 0, endX, endY, 0], colour, alpha)
  }

  private drawAxes({ axes }: ProjectedScene, viewport: Viewport): void {
    for (const { pixels } of axes) this.drawPath(pixels, viewport.theme.muted, 0.7)
  }

  /** The trails of the shown tokens up to the playhead. Only their points are projected. */
  private drawTrails(scene: Scene, screen: Float32Array, toPixels: (points: Float32Array) => Float32Array, viewport: Viewport): void {
    const c = scene.colours
    const passed = Math.ceil(scene.playhead) // steps before the playhead
    for (let token = 0; token < scene.tokens; token++) {
      if (!scene.hasTrail(token) || !passed) continue
      const isPath = token === scene.predicting
      const opacity = (scene.arcs.length || scene.arrows.length ? 0.35 : 1) * tokenOpacity(scene, token)
      if (!isPath && opacity === 0) continue
      const colour = isPath ? viewport.theme.accent : css([c[token * 3]!, c[token * 3 + 1]!, c[token * 3 + 2]!])
      const trail = Float32Array.of(...toPixels(tokenPath(scene, token, passed)), ...screen.subarray(token * 3, token * 3 + 3))
      if (isPath) this.drawPath(trail, colour, PATH_OPACITY)
      else for (let step = 0; step < passed; step++) this.drawPath(trail.subarray(step * 3, step * 3 + 6), colour, opacity * (0.1 + 0.5 * Math.exp((step - scene.playhead) * 0.4)))
    }
    for (const segment of ghostSegments(scene)) {
      const [start, end] = segment.map(toPixels) as [Float32Array, Float32Array]
      this.drawLine(start[0]!, start[1]!, end[0]!, end[1]!, viewport.theme.muted, GHOST_OPACITY)
    }
    for (const offset of pathOffsets(scene)) {
      const [x, y] = toPixels(scene.points.subarray(offset, offset + 3)) as unknown as [number, number]
      this.drawDisc(x, y, STEP_RADIUS, viewport.theme.accent, viewport)
    }
  }

  /** Each arc is one curve through the projected control point, which differs from the projected arc by less than a pixel or two. */
  private drawArcs(scene: Scene, { points, screen }: ProjectedScene, toPixels: (points: Float32Array) => Float32Array): void {
    const { context } = this
    const largest = Math.abs(scene.arcs[0]?.weight ?? 1)
    const controls = toPixels(Float32Array.from(scene.arcs.flatMap(({ from, to }) => arcControl(points.subarray(from * 3, from * 3 + 3), points.subarray(to * 3, to * 3 + 3)))))
    context.lineWidth = 1
    scene.arcs.forEach(({ from, to, weight }, index) => {
      context.globalAlpha = 0.08 + 0.8 * (Math.abs(weight) / largest)
      context.strokeStyle = weight > 0 ? ARC_COLOURS.positive : ARC_COLOURS.negative
      context.beginPath()
      context.moveTo(screen[from * 3]!, screen[from * 3 + 1]!)
      context.quadraticCurveTo(controls[index * 3]!, controls[index * 3 + 1]!, screen[to * 3]!, screen[to * 3 + 1]!)
      context.stroke()
    })
  }

  private drawArrows(scene: Scene, toPixels: (points: Float32Array) => Float32Array, camera: Camera): void {
    for (const arrow of scene.arrows) {
      const alpha = 0.85 * tokenOpacity(scene, arrow.token)
      const p = toPixels(Float32Array.from([arrow.to, arrow.from, ...arrowTip(arrow, camera)].flat()))
      for (let k = 3; alpha > 0 && k < p.length; k += 3) this.drawLine(p[0]!, p[1]!, p[k]!, p[k + 1]!, arrow.colour, alpha)
    }
  }

  private drawComparison(scene: Scene, screen: Float32Array, toPixels: (points: Float32Array) => Float32Array): void {
    const { context } = this
    const p = toPixels(scene.comparison!)
    for (let token = 0; token < scene.comparisonTokens; token++) {
      if (scene.comparisonTokens === scene.tokens) this.drawLine(p[token * 3]!, p[token * 3 + 1]!, screen[token * 3]!, screen[token * 3 + 1]!, '#8a93a6', 0.4)
      context.globalAlpha = scene.highlighted.size && !scene.highlighted.has(token) ? 0.15 : 0.8
      context.strokeStyle = '#8a93a6'
      context.lineWidth = 1.6
      context.beginPath()
      context.arc(p[token * 3]!, p[token * 3 + 1]!, RADIUS, 0, 2 * Math.PI)
      context.stroke()
    }
  }

  private drawDots(scene: Scene, screen: Float32Array, camera: Camera, viewport: Viewport): void {
    const c = scene.colours
    const order = Array.from({ length: scene.tokens }, (_, token) => token).sort((a, b) => screen[b * 3 + 2]! - screen[a * 3 + 2]!)
    for (const token of order) {
      const alpha = tokenOpacity(scene, token)
      const [x, y, depth] = [screen[token * 3]!, screen[token * 3 + 1]!, screen[token * 3 + 2]!]
      const radius = (scene.highlighted.has(token) ? RADIUS * 1.4 : RADIUS) * depthScale(camera, depth)
      if (alpha > 0 && depth > 0) this.drawDisc(x, y, radius, css([c[token * 3]!, c[token * 3 + 1]!, c[token * 3 + 2]!]), viewport, alpha)
    }
  }

  private drawDisc(x: number, y: number, radius: number, colour: string, viewport: Viewport, alpha = 1): void {
    const { context } = this
    context.globalAlpha = alpha
    context.fillStyle = colour
    context.strokeStyle = viewport.theme.paper
    context.lineWidth = 1
    context.beginPath()
    context.arc(x, y, radius, 0, 2 * Math.PI)
    context.fill()
    context.stroke()
  }

  private drawRing(scene: Scene, screen: Float32Array, viewport: Viewport): void {
    const predicting = shownPredicting(scene)
    if (predicting === null) return
    const { context } = this
    context.globalAlpha = 1
    context.strokeStyle = viewport.theme.accent
    context.lineWidth = 2
    context.beginPath()
    context.arc(screen[predicting * 3]!, screen[predicting * 3 + 1]!, RING_RADIUS, 0, 2 * Math.PI)
    context.stroke()
  }

  private drawStar(scene: Scene, toPixels: (points: Float32Array) => Float32Array): void {
    const { context } = this
    const [x, y] = toPixels(Float32Array.from(scene.star!))
    context.globalAlpha = 1
    context.fillStyle = css(rgb('#d9622b'))
    context.beginPath()
    for (let k = 0; k < 10; k++) {
      const [radius, angle] = [k % 2 ? 4.5 : 11, Math.PI * (k / 5 - 0.5)]
      context.lineTo(x! + radius * Math.cos(angle), y! + radius * Math.sin(angle))
    }
    context.fill()
  }

  dispose(): void {}
}
