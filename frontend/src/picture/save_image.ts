/** Panels as image files. The SVG contains its colours, so it looks the same everywhere. */

import { PALETTE, type Theme } from '../palette'

export function download(name: string, blob: Blob): void {
  const link = document.createElement('a')
  link.href = URL.createObjectURL(blob)
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 1000)
}

export interface ImageCaption { title: string; legend: { name: string; colour: string; style: string }[]; scale: { low: string; high: string; isDiverging: boolean } | null }

const LETTER_WIDTH = 6.2
const ROW_HEIGHT = 16

/** Positions of the names of a legend, on as many lines as they need. */
export function legendPositions(names: string[], width: number): { x: number; line: number }[] {
  let [x, line] = [0, 0]
  return names.map((name) => {
    const entryWidth = 30 + name.length * LETTER_WIDTH
    if (x > 0 && x + entryWidth > width) [x, line] = [0, line + 1]
    const position = { x, line }
    x += entryWidth
    return position
  })
}

function appendSvg<K extends keyof SVGElementTagNameMap>(parent: Element, name: K, attributes: Record<string, string | number>, text = ''): SVGElementTagNameMap[K] {
  const element = document.createElementNS('http://www.w3.org/2000/svg', name)
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, String(value))
  element.textContent = text
  parent.append(element)
  return element
}

/** A panel as an SVG file, with the title, the legend and the colour scale that the page shows around it. */
export function svgText(svg: SVGSVGElement, { title, legend, scale }: ImageCaption, theme: Theme): string {
  const { width, height } = svg.viewBox.baseVal
  const positions = legendPositions(legend.map(({ name }) => name), width - 8)
  const top = 24 + (positions.length ? ((positions.at(-1)?.line ?? 0) + 1) * ROW_HEIGHT : 0)
  const totalHeight = top + height + (scale ? ROW_HEIGHT + 4 : 0)
  const image = document.createElementNS('http://www.w3.org/2000/svg', 'svg')
  for (const [name, value] of Object.entries({ viewBox: `0 0 ${width} ${totalHeight}`, width, height: totalHeight, 'font-family': 'system-ui, sans-serif', 'font-size': 11 })) image.setAttribute(name, String(value))
  appendSvg(image, 'rect', { width, height: totalHeight, fill: theme.paper })
  appendSvg(image, 'text', { x: 4, y: 16, 'font-size': 13, 'font-weight': 600, fill: theme.ink }, title)
  legend.forEach(({ name, colour, style }, index) => {
    const [x, y] = [4 + positions[index]!.x, 30 + positions[index]!.line * ROW_HEIGHT]
    if (style === 'dots') appendSvg(image, 'circle', { cx: x + 8, cy: y, r: 4, fill: colour })
    else if (style === 'area') appendSvg(image, 'rect', { x: x + 2, y: y - 4, width: 12, height: 8, rx: 1, fill: colour })
    else appendSvg(image, 'line', { x1: x, x2: x + 16, y1: y, y2: y, stroke: colour, 'stroke-width': 2.5, ...(style === 'dashed' ? { 'stroke-dasharray': '5 3' } : {}) })
    appendSvg(image, 'text', { x: x + 21, y: y + 4, fill: theme.muted }, name)
  })
  const group = appendSvg(image, 'g', { transform: `translate(0 ${top})` })
  const panel = svg.cloneNode(true) as SVGSVGElement
  panel.querySelectorAll('.selection').forEach((element) => element.remove())
  group.append(...panel.childNodes)
  if (scale) {
    const gradient = appendSvg(appendSvg(image, 'defs', {}), 'linearGradient', { id: 'rheoscope-scale' })
    const stops = scale.isDiverging ? [PALETTE.second!, theme.paper, PALETTE.first!] : [theme.paper, PALETTE.first!]
    stops.forEach((colour, index) => appendSvg(gradient, 'stop', { offset: index / (stops.length - 1), 'stop-color': colour }))
    const y = top + height + 4
    appendSvg(image, 'rect', { x: width - 130, y, width: 80, height: 9, rx: 4, fill: 'url(#rheoscope-scale)', stroke: theme.line })
    appendSvg(image, 'text', { x: width - 136, y: y + 9, 'text-anchor': 'end', fill: theme.muted }, scale.low)
    appendSvg(image, 'text', { x: width - 44, y: y + 9, fill: theme.muted }, scale.high)
  }
  return new XMLSerializer().serializeToString(image)
}

export const fileName = (title: string, ending: string): string => `rheoscope-${title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '').slice(0, 60)}.${ending}`

export function saveSvg(svg: SVGSVGElement, caption: ImageCaption, theme: Theme): void {
  download(fileName(caption.title, 'svg'), new Blob([svgText(svg, caption, theme)], { type: 'image/svg+xml' }))
}

export async function savePng(svg: SVGSVGElement, caption: ImageCaption, theme: Theme, scale = 3): Promise<void> {
  const image = new Image()
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(svg, caption, theme))}`
  await image.decode()
  const canvas = document.createElement('canvas')
  ;[canvas.width, canvas.height] = [image.naturalWidth * scale, image.naturalHeight * scale]
  canvas.getContext('2d')!.drawImage(image, 0, 0, canvas.width, canvas.height)
  canvas.toBlob((blob) => blob && download(fileName(caption.title, 'png'), blob))
}
