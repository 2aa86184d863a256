/** Panels as files: the SVG carries its own colours, so it looks the same wherever it is opened. */

import { PALETTE, type Theme } from '../palette'

export function download(name: string, blob: Blob): void {
  const link = document.createElement('a')
  link.href = URL.createObjectURL(blob)
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 1000)
}

export interface Caption { title: string; key: { name: string; colour: string; style: string }[]; scale: { low: string; high: string; two: boolean } | null }

const LETTER = 6.2
const ROW = 16

/** Where the names of a key stand, on as many lines as they take. */
export function keyPlaces(names: string[], width: number): { x: number; line: number }[] {
  let [x, line] = [0, 0]
  return names.map((name) => {
    const wide = 30 + name.length * LETTER
    if (x > 0 && x + wide > width) [x, line] = [0, line + 1]
    const at = { x, line }
    x += wide
    return at
  })
}

function put<K extends keyof SVGElementTagNameMap>(on: Element, name: K, attributes: Record<string, string | number>, text = ''): SVGElementTagNameMap[K] {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name)
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value))
  made.textContent = text
  on.append(made)
  return made
}

/** A panel as a file of its own: with its title, what its colours mean and the ends of its scale, which the page shows around it. */
export function svgText(svg: SVGSVGElement, { title, key, scale }: Caption, theme: Theme): string {
  const { width, height } = svg.viewBox.baseVal
  const places = keyPlaces(key.map(({ name }) => name), width - 8)
  const top = 24 + (places.length ? ((places.at(-1)?.line ?? 0) + 1) * ROW : 0)
  const tall = top + height + (scale ? ROW + 4 : 0)
  const made = document.createElementNS('http://www.w3.org/2000/svg', 'svg')
  for (const [name, value] of Object.entries({ viewBox: `0 0 ${width} ${tall}`, width, height: tall, 'font-family': 'system-ui, sans-serif', 'font-size': 11 })) made.setAttribute(name, String(value))
  put(made, 'rect', { width, height: tall, fill: theme.paper })
  put(made, 'text', { x: 4, y: 16, 'font-size': 13, 'font-weight': 600, fill: theme.ink }, title)
  key.forEach(({ name, colour, style }, at) => {
    const [x, y] = [4 + places[at]!.x, 30 + places[at]!.line * ROW]
    if (style === 'dots') put(made, 'circle', { cx: x + 8, cy: y, r: 4, fill: colour })
    else put(made, 'line', { x1: x, x2: x + 16, y1: y, y2: y, stroke: colour, 'stroke-width': 2.5, ...(style === 'dashed' ? { 'stroke-dasharray': '5 3' } : {}) })
    put(made, 'text', { x: x + 21, y: y + 4, fill: theme.muted }, name)
  })
  const body = put(made, 'g', { transform: `translate(0 ${top})` })
  const copy = svg.cloneNode(true) as SVGSVGElement
  copy.querySelectorAll('.chosen').forEach((one) => one.remove())
  body.append(...copy.childNodes)
  if (scale) {
    const fade = put(put(made, 'defs', {}), 'linearGradient', { id: 'rheoscope-scale' })
    const stops = scale.two ? [PALETTE.second!, theme.paper, PALETTE.first!] : [theme.paper, PALETTE.first!]
    stops.forEach((colour, at) => put(fade, 'stop', { offset: at / (stops.length - 1), 'stop-color': colour }))
    const y = top + height + 4
    put(made, 'rect', { x: width - 130, y, width: 80, height: 9, rx: 4, fill: 'url(#rheoscope-scale)', stroke: theme.line })
    put(made, 'text', { x: width - 136, y: y + 9, 'text-anchor': 'end', fill: theme.muted }, scale.low)
    put(made, 'text', { x: width - 44, y: y + 9, fill: theme.muted }, scale.high)
  }
  return new XMLSerializer().serializeToString(made)
}

export const fileName = (title: string, ending: string): string => `rheoscope-${title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '').slice(0, 60)}.${ending}`

export function saveSvg(svg: SVGSVGElement, caption: Caption, theme: Theme): void {
  download(fileName(caption.title, 'svg'), new Blob([svgText(svg, caption, theme)], { type: 'image/svg+xml' }))
}

export async function savePng(svg: SVGSVGElement, caption: Caption, theme: Theme, times = 3): Promise<void> {
  const image = new Image()
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(svg, caption, theme))}`
  await image.decode()
  const canvas = document.createElement('canvas')
  ;[canvas.width, canvas.height] = [image.naturalWidth * times, image.naturalHeight * times]
  canvas.getContext('2d')!.drawImage(image, 0, 0, canvas.width, canvas.height)
  canvas.toBlob((blob) => blob && download(fileName(caption.title, 'png'), blob))
}
