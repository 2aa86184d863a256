/** Draws the cloud on a 2D canvas, for browsers without WebGL. */

import { css, rgb } from '../palette'
import { project, type Camera } from './camera'
import { labelColour, visibleLabels } from './labels'
import { arcPoints, ARC_COLOURS, type Scene } from './scene'
import { arrowTip } from './arrows'
import { axisSegments, ghostSegments, GHOST_OPACITY, pathOffsets, PATH_OPACITY, projectScene, RADIUS, RING_RADIUS, shownPredicting, STEP_RADIUS, tokenOpacity, type Renderer, type Viewport } from './renderer'
import { FONT, FONT_SIZE, MARGIN, textWidth } from './text_atlas'

export class CanvasRenderer implements Renderer {
  private readonly context: CanvasRenderingContext2D
  constructor(private readonly canvas: HTMLCanvasElement) {
    this.context = canvas.getContext('2d')!
  }

  draw(scene: Scene, camera: Camera, viewport: Viewport): void {
    const { context } = this
    this.canvas.width = viewport.width * viewport.ratio
    this.canvas.height = viewport.height * viewport.ratio
    context.scale(viewport.ratio, viewport.ratio)
    context.font = `500 ${FONT_SIZE}px ${FONT}`
    context.textBaseline = 'middle'
    const projected = projectScene(scene, camera, viewport)
    const toPixels = (points: Float32Array) => project(points, camera, viewport.width, viewport.height)
    this.drawAxes(toPixels, camera, viewport)
    this.drawTrails(scene, toPixels, viewport)
    this.drawArcs(scene, projected.points, toPixels)
    this.drawArrows(scene, toPixels, camera)
    if (scene.comparison) this.drawComparison(scene, projected.screen, toPixels)
    this.drawDots(scene, projected.screen, viewport)
    this.drawRing(scene, projected.screen, viewport)
    if (scene.star) this.drawStar(scene, toPixels)
    for (const label of visibleLabels(scene, projected, viewport, toPixels, (text) => ({ width: textWidth(context, text), height: FONT_SIZE + 2 * MARGIN }))) {
      const [x, y] = toPixels(Float32Array.from(label.point))
      this.drawText(label.text, x! + label.offset + MARGIN, y! + label.drop, labelColour(label.kind, viewport.theme), viewport, label.opacity)
    }
    context.globalAlpha = 1
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

  private drawLine(x: number, y: number, endX: number, endY: number, colour: string, alpha: number): void {
    const { context } = this
    context.globalAlpha = alpha
    context.strokeStyle = colour
    context.lineWidth = 1
    context.beginPath()
    context.moveTo(x, y)
    context.lineTo(endX, endY)
    context.stroke()
  }

  private drawAxes(toPixels: (points: Float32Array) => Float32Array, camera: Camera, viewport: Viewport): void {
    axisSegments(camera, viewport).forEach((segment) => {
      const p = toPixels(Float32Array.from(segment))
      this.drawLine(p[0]!, p[1]!, p[3]!, p[4]!, viewport.theme.muted, 0.7)
    })
  }

  private drawTrails(scene: Scene, toPixels: (points: Float32Array) => Float32Array, viewport: Viewport): void {
    const p = toPixels(scene.points)
    const c = scene.colours
    for (let step = 0; step < Math.floor(scene.playhead); step++)
      for (let token = 0; token < scene.tokens; token++) {
        if (!scene.hasTrail(token)) continue
        const [a, b] = [(step * scene.tokens + token) * 3, ((step + 1) * scene.tokens + token) * 3]
        const isPath = token === scene.predicting
        const opacity = (scene.arcs.length || scene.arrows.length ? 0.35 : 1) * tokenOpacity(scene, token)
        const alpha = isPath ? PATH_OPACITY : opacity * (0.1 + 0.5 * Math.exp((step - scene.playhead) * 0.4))
        if (alpha > 0) this.drawLine(p[a]!, p[a + 1]!, p[b]!, p[b + 1]!, isPath ? viewport.theme.accent : css([c[token * 3]!, c[token * 3 + 1]!, c[token * 3 + 2]!]), alpha)
      }
    for (const segment of ghostSegments(scene)) {
      const [start, end] = segment.map(toPixels) as [Float32Array, Float32Array]
      this.drawLine(start[0]!, start[1]!, end[0]!, end[1]!, viewport.theme.muted, GHOST_OPACITY)
    }
    for (const offset of pathOffsets(scene)) this.drawDisc(p[offset]!, p[offset + 1]!, STEP_RADIUS, viewport.theme.accent)
  }

  private drawArcs(scene: Scene, points: Float32Array, toPixels: (points: Float32Array) => Float32Array): void {
    const largest = Math.abs(scene.arcs[0]?.weight ?? 1)
    for (const { from, to, weight } of scene.arcs) {
      const p = toPixels(Float32Array.from(arcPoints(points.subarray(from * 3, from * 3 + 3), points.subarray(to * 3, to * 3 + 3)).flat()))
      for (let k = 3; k < p.length; k += 3) this.drawLine(p[k - 3]!, p[k - 2]!, p[k]!, p[k + 1]!, weight > 0 ? ARC_COLOURS.positive : ARC_COLOURS.negative, 0.08 + 0.8 * (Math.abs(weight) / largest))
    }
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
      context.globalAlpha = 0.8
      context.lineWidth = 1.6
      context.beginPath()
      context.arc(p[token * 3]!, p[token * 3 + 1]!, RADIUS, 0, 2 * Math.PI)
      context.stroke()
    }
  }

  private drawDots(scene: Scene, screen: Float32Array, viewport: Viewport): void {
    const { context } = this
    const order = Array.from({ length: scene.tokens }, (_, token) => token).sort((a, b) => screen[b * 3 + 2]! - screen[a * 3 + 2]!)
    for (const token of order) {
      const c = scene.colours
      context.globalAlpha = tokenOpacity(scene, token)
      if (context.globalAlpha === 0 || !(screen[token * 3 + 2]! > 0)) continue
      context.fillStyle = css([c[token * 3]!, c[token * 3 + 1]!, c[token * 3 + 2]!])
      context.strokeStyle = viewport.theme.paper
      context.lineWidth = 1
      context.beginPath()
      context.arc(screen[token * 3]!, screen[token * 3 + 1]!, scene.highlighted.has(token) ? RADIUS * 1.4 : RADIUS, 0, 2 * Math.PI)
      context.fill()
      context.stroke()
    }
  }

  private drawDisc(x: number, y: number, radius: number, colour: string): void {
    const { context } = this
    context.globalAlpha = 1
    context.fillStyle = colour
    context.beginPath()
    context.arc(x, y, radius, 0, 2 * Math.PI)
    context.fill()
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
