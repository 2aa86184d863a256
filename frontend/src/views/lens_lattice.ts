/** The logit lens of every token after every half-layer, on a canvas. Only the visible part is drawn. */

import { shortenText } from '../cloud/text_atlas'
import { css, rgb, shade, type Theme } from '../palette'

export interface Lattice { predictions: string[][]; probability: Float32Array; tokens: number; before: string[][] | null }
export const CELL_WIDTH = 74
export const CELL_HEIGHT = 22
export const LABEL_WIDTH = 58
export const HEADER_HEIGHT = 24

export interface LatticeView { width: number; scroll: number; ratio: number; token: number | null; step: number }

export const latticeHeight = (lattice: Lattice): number => HEADER_HEIGHT + lattice.predictions.length * CELL_HEIGHT + 2

/** The cell at a pixel. */
export function cellAt(lattice: Lattice, x: number, y: number, scroll: number): { step: number; token: number } | null {
  const [token, step] = [Math.floor((x - LABEL_WIDTH + scroll) / CELL_WIDTH), Math.floor((y - HEADER_HEIGHT) / CELL_HEIGHT)]
  return x > LABEL_WIDTH && token >= 0 && token < lattice.tokens && step >= 0 && step < lattice.predictions.length ? { step, token } : null
}

const fitText = (context: CanvasRenderingContext2D, text: string, width: number): string => {
  let out = shortenText(text)
  while (out.length > 2 && context.measureText(out).width > width) out = out.slice(0, -2) + '…'
  return out
}

export function drawLattice(canvas: HTMLCanvasElement, lattice: Lattice, view: LatticeView, steps: string[], tokens: string[], theme: Theme): void {
  const context = canvas.getContext('2d')!
  canvas.width = view.width * view.ratio
  canvas.height = latticeHeight(lattice) * view.ratio
  context.scale(view.ratio, view.ratio)
  context.font = '12px system-ui, sans-serif'
  context.textBaseline = 'middle'
  const paper = rgb(theme.paper)
  const first = Math.max(0, Math.floor(view.scroll / CELL_WIDTH))
  const last = Math.min(lattice.tokens - 1, Math.ceil((view.scroll + view.width) / CELL_WIDTH))
  for (let token = first; token <= last; token++) {
    const x = LABEL_WIDTH + token * CELL_WIDTH - view.scroll
    context.textAlign = 'center'
    context.fillStyle = token === view.token ? theme.ink : theme.muted
    context.font = `${token === view.token ? 600 : 400} 12px system-ui, sans-serif`
    context.fillText(fitText(context, tokens[token] ?? '', CELL_WIDTH - 8), x + CELL_WIDTH / 2, HEADER_HEIGHT / 2)
    context.font = '12px system-ui, sans-serif'
    lattice.predictions.forEach((row, step) => {
      const y = HEADER_HEIGHT + step * CELL_HEIGHT
      const value = lattice.probability[step * lattice.tokens + token]!
      context.fillStyle = css(shade(value, paper))
      context.fillRect(x + 1, y + 1, CELL_WIDTH - 2, CELL_HEIGHT - 2)
      if (lattice.before && lattice.before[step]?.[token] !== row[token]) {
        context.strokeStyle = '#d9622b'
        context.lineWidth = 2
        context.strokeRect(x + 2, y + 2, CELL_WIDTH - 4, CELL_HEIGHT - 4)
      }
      context.fillStyle = value > 0.6 ? '#ffffff' : theme.ink
      context.fillText(fitText(context, row[token] ?? '', CELL_WIDTH - 8), x + CELL_WIDTH / 2, y + CELL_HEIGHT / 2)
    })
  }
  context.fillStyle = theme.paper
  context.fillRect(0, 0, LABEL_WIDTH, latticeHeight(lattice))
  context.textAlign = 'right'
  steps.forEach((name, step) => {
    context.fillStyle = step === view.step ? theme.ink : theme.muted
    context.font = `${step === view.step ? 600 : 400} 11px system-ui, sans-serif`
    context.fillText(name, LABEL_WIDTH - 6, HEADER_HEIGHT + (step + 0.5) * CELL_HEIGHT)
  })
}
