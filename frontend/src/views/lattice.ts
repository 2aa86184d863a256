/** The lattice of what every token would say after every half-layer: only what is in sight is drawn. */

import { shortened } from '../cloud/words'
import { css, rgb, shade, type Theme } from '../palette'

export interface Lattice { shown: string[][]; probability: Float32Array; tokens: number; before: string[][] | null }
export const CELL = 74
export const TALL = 22
export const SIDE = 58
export const TOP = 24

export interface Sight { width: number; scroll: number; ratio: number; token: number | null; step: number }

export const height = (lattice: Lattice): number => TOP + lattice.shown.length * TALL + 2

/** Which cell lies at a place of the sheet. */
export function cellAt(lattice: Lattice, x: number, y: number, scroll: number): { step: number; token: number } | null {
  const [token, step] = [Math.floor((x - SIDE + scroll) / CELL), Math.floor((y - TOP) / TALL)]
  return x > SIDE && token >= 0 && token < lattice.tokens && step >= 0 && step < lattice.shown.length ? { step, token } : null
}

const fitted = (context: CanvasRenderingContext2D, text: string, room: number): string => {
  let out = shortened(text)
  while (out.length > 2 && context.measureText(out).width > room) out = out.slice(0, -2) + '…'
  return out
}

export function draw(canvas: HTMLCanvasElement, lattice: Lattice, sight: Sight, steps: string[], tokens: string[], theme: Theme): void {
  const context = canvas.getContext('2d')!
  canvas.width = sight.width * sight.ratio
  canvas.height = height(lattice) * sight.ratio
  context.scale(sight.ratio, sight.ratio)
  context.font = '12px system-ui, sans-serif'
  context.textBaseline = 'middle'
  const paper = rgb(theme.paper)
  const first = Math.max(0, Math.floor(sight.scroll / CELL))
  const last = Math.min(lattice.tokens - 1, Math.ceil((sight.scroll + sight.width) / CELL))
  for (let token = first; token <= last; token++) {
    const x = SIDE + token * CELL - sight.scroll
    context.textAlign = 'center'
    context.fillStyle = token === sight.token ? theme.ink : theme.muted
    context.font = `${token === sight.token ? 600 : 400} 12px system-ui, sans-serif`
    context.fillText(fitted(context, tokens[token] ?? '', CELL - 8), x + CELL / 2, TOP / 2)
    context.font = '12px system-ui, sans-serif'
    lattice.shown.forEach((row, step) => {
      const y = TOP + step * TALL
      const value = lattice.probability[step * lattice.tokens + token]!
      context.fillStyle = css(shade(value, paper))
      context.fillRect(x + 1, y + 1, CELL - 2, TALL - 2)
      if (lattice.before && lattice.before[step]?.[token] !== row[token]) {
        context.strokeStyle = '#d9622b'
        context.lineWidth = 2
        context.strokeRect(x + 2, y + 2, CELL - 4, TALL - 4)
      }
      context.fillStyle = value > 0.6 ? '#ffffff' : theme.ink
      context.fillText(fitted(context, row[token] ?? '', CELL - 8), x + CELL / 2, y + TALL / 2)
    })
  }
  context.fillStyle = theme.paper
  context.fillRect(0, 0, SIDE, height(lattice))
  context.textAlign = 'right'
  steps.forEach((name, step) => {
    context.fillStyle = step === sight.step ? theme.ink : theme.muted
    context.font = `${step === sight.step ? 600 : 400} 11px system-ui, sans-serif`
    context.fillText(name, SIDE - 6, TOP + (step + 0.5) * TALL)
  })
}
