/** The same cloud on a plain canvas, where WebGL is missing. */

import { css, rgb } from '../palette'
import { project, type Eye } from './camera'
import { bow, OF_ARCS, type Scene } from './frame'
import { barbs } from './strokes'
import { axisLines, labelled, placed, RADIUS, strength, type Hand, type Sheet } from './hand'
import { FONT, LETTERS, MARGIN, widthOf } from './words'

export class Flat implements Hand {
  private readonly context: CanvasRenderingContext2D
  constructor(private readonly canvas: HTMLCanvasElement) {
    this.context = canvas.getContext('2d')!
  }

  draw(scene: Scene, eye: Eye, sheet: Sheet): void {
    const { context } = this
    this.canvas.width = sheet.width * sheet.ratio
    this.canvas.height = sheet.height * sheet.ratio
    context.scale(sheet.ratio, sheet.ratio)
    context.font = `500 ${LETTERS}px ${FONT}`
    context.textBaseline = 'middle'
    const now = placed(scene, eye, sheet)
    const onSheet = (points: Float32Array) => project(points, eye, sheet.width, sheet.height)
    this.axes(scene, onSheet, eye, sheet)
    if (scene.trails) this.trails(scene, onSheet)
    this.arcs(scene, now.places, onSheet)
    this.strokes(scene, onSheet, eye)
    if (scene.beside) this.beside(scene, now.screen, onSheet)
    this.dots(scene, now.screen, sheet)
    for (const { token, x, y, height } of labelled(scene, now, sheet, (text) => ({ width: widthOf(context, text), height: LETTERS + 2 * MARGIN })))
      this.word(scene.labels[token]!, x + MARGIN, y + height / 2, sheet.theme.ink, sheet, Math.max(strength(scene, token), 0.3))
    if (scene.star) this.star(scene, onSheet, sheet)
    context.globalAlpha = 1
  }

  private word(text: string, x: number, y: number, colour: string, sheet: Sheet, alpha = 1): void {
    const { context } = this
    context.globalAlpha = alpha
    context.lineJoin = 'round'
    context.lineWidth = 3.5
    context.strokeStyle = sheet.theme.paper
    context.strokeText(text, x, y)
    context.fillStyle = colour
    context.fillText(text, x, y)
  }

  private line(x: number, y: number, to: number, down: number, colour: string, alpha: number): void {
    const { context } = this
    context.globalAlpha = alpha
    context.strokeStyle = colour
    context.lineWidth = 1
    context.beginPath()
    context.moveTo(x, y)
    context.lineTo(to, down)
    context.stroke()
  }

  private axes(scene: Scene, onSheet: (points: Float32Array) => Float32Array, eye: Eye, sheet: Sheet): void {
    axisLines(eye, sheet).forEach((one, k) => {
      const p = onSheet(Float32Array.from(one))
      this.line(p[0]!, p[1]!, p[3]!, p[4]!, sheet.theme.muted, 0.7)
      const text = scene.axes[k]
      if (text) this.word(text, p[3]! < p[0]! ? p[3]! - widthOf(this.context, text) : p[3]! + 4, p[4]!, sheet.theme.muted, sheet)
    })
  }

  private trails(scene: Scene, onSheet: (points: Float32Array) => Float32Array): void {
    const p = onSheet(scene.all)
    const c = scene.colours
    for (let step = 0; step < Math.floor(scene.at); step++)
      for (let token = 0; token < scene.tokens; token++) {
        const [a, b] = [(step * scene.tokens + token) * 3, ((step + 1) * scene.tokens + token) * 3]
        const alpha = (scene.arcs.length || scene.strokes.length ? 0.35 : 1) * strength(scene, token) * (0.1 + 0.5 * Math.exp((step - scene.at) * 0.4))
        if (alpha > 0) this.line(p[a]!, p[a + 1]!, p[b]!, p[b + 1]!, css([c[token * 3]!, c[token * 3 + 1]!, c[token * 3 + 2]!]), alpha)
      }
  }

  private arcs(scene: Scene, places: Float32Array, onSheet: (points: Float32Array) => Float32Array): void {
    const top = Math.abs(scene.arcs[0]?.weight ?? 1)
    for (const { from, to, weight } of scene.arcs) {
      const p = onSheet(Float32Array.from(bow(places.subarray(from * 3, from * 3 + 3), places.subarray(to * 3, to * 3 + 3)).flat()))
      for (let k = 3; k < p.length; k += 3) this.line(p[k - 3]!, p[k - 2]!, p[k]!, p[k + 1]!, weight > 0 ? OF_ARCS.more : OF_ARCS.less, 0.08 + 0.8 * (Math.abs(weight) / top))
    }
  }

  private strokes(scene: Scene, onSheet: (points: Float32Array) => Float32Array, eye: Eye): void {
    for (const one of scene.strokes) {
      const alpha = 0.85 * strength(scene, one.token)
      const ends = one.barbed ? barbs(one, eye) : []
      const p = onSheet(Float32Array.from([one.to, one.from, ...ends].flat()))
      for (let k = 3; alpha > 0 && k < p.length; k += 3) this.line(p[0]!, p[1]!, p[k]!, p[k + 1]!, one.colour, alpha)
    }
  }

  private beside(scene: Scene, screen: Float32Array, onSheet: (points: Float32Array) => Float32Array): void {
    const { context } = this
    const p = onSheet(scene.beside!)
    for (let token = 0; token < scene.besideTokens; token++) {
      if (scene.besideTokens === scene.tokens) this.line(p[token * 3]!, p[token * 3 + 1]!, screen[token * 3]!, screen[token * 3 + 1]!, '#8a93a6', 0.4)
      context.globalAlpha = 0.8
      context.lineWidth = 1.6
      context.beginPath()
      context.arc(p[token * 3]!, p[token * 3 + 1]!, RADIUS, 0, 2 * Math.PI)
      context.stroke()
    }
  }

  private dots(scene: Scene, screen: Float32Array, sheet: Sheet): void {
    const { context } = this
    const order = Array.from({ length: scene.tokens }, (_, token) => token).sort((a, b) => screen[b * 3 + 2]! - screen[a * 3 + 2]!)
    for (const token of order) {
      const c = scene.colours
      context.globalAlpha = strength(scene, token)
      if (context.globalAlpha === 0 || !(screen[token * 3 + 2]! > 0)) continue
      context.fillStyle = css([c[token * 3]!, c[token * 3 + 1]!, c[token * 3 + 2]!])
      context.strokeStyle = sheet.theme.paper
      context.lineWidth = 1
      context.beginPath()
      context.arc(screen[token * 3]!, screen[token * 3 + 1]!, scene.bright.has(token) ? RADIUS * 1.4 : RADIUS, 0, 2 * Math.PI)
      context.fill()
      context.stroke()
    }
  }

  private star(scene: Scene, onSheet: (points: Float32Array) => Float32Array, sheet: Sheet): void {
    const { context } = this
    const [x, y] = onSheet(Float32Array.from(scene.star!))
    context.globalAlpha = 1
    context.fillStyle = css(rgb('#d9622b'))
    context.beginPath()
    for (let k = 0; k < 10; k++) {
      const [far, turn] = [k % 2 ? 4.5 : 11, Math.PI * (k / 5 - 0.5)]
      context.lineTo(x! + far * Math.cos(turn), y! + far * Math.sin(turn))
    }
    context.fill()
    this.word(scene.starLabel, x! + 12, y!, sheet.theme.ink, sheet)
  }

  dispose(): void {}
}
